"""Records and reads one recording for all readers of this process: the shell around `cache/recording`.

Theory of operation. Each process has one recorder for each recording that it reads, and the recorder has one thread.
The thread follows the log, and when a reader wants an element that is neither recorded nor being written by somebody
else, it takes the lease and runs the pipeline. It produces only what was asked for: by readers of this process element
by element, by waiting readers of other processes (`Store.asked`) chunk by chunk, however slowly this process consumes.
What is produced is readable in this process at once, and committed when it fills a chunk or is a second old. A lease
that nobody has used for `lease_s` is given back.

Readers never touch the log, the pipeline or the lease: they state what they want, wait, and read frames. So a
`KeyboardInterrupt`, which Python raises in the main thread between any two instructions, finds nothing half done. A
reader waits on a queue of its own and not on a condition, whose methods an interrupt can leave with the lock held. What
is read from a server is read on another thread (`cache/shield`).

A backend never stops a pass. Where recording is not possible (a full disk, a server that is gone) or ends (an element
failed), `Alone` hands the reader its pipeline. A recording that is lost (damaged, evicted, forgotten, given up by
others) is begun anew once; when the next one is lost too, the rest of the pass runs without the cache. So on account of
the backend no pass calls a function more than twice for an element, or three times where the pipeline cannot skip
elements without running.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from dsnb.cache.backends import Gone, Shelf, Store, Unwritable, warn
from dsnb.cache.opened import FileNote, first_change
from dsnb.cache.places import without_password
from dsnb.cache.process import here, is_gone
from dsnb.cache.recording import Abandon, Log, Next, Watch, decide
from dsnb.cache.shield import start_thread
from dsnb.cache.slots import Slots
from dsnb.cache.writer import HOLDERS, PipelineFailed, Plan, Source, Writer
from dsnb.elements.frame import Frame
from dsnb.errors import CancelledError, DataLossError, DsnbError, FailedPreconditionError, UnavailableError

if TYPE_CHECKING:
    from dsnb.cache.reader import Reader

_LOOK_S: Final = 0.25
"""How often a reader that waits looks for itself; it is woken in time, unless an interrupt swallows the call."""
_FIRST_POLL_S: Final = 0.002
_MOST_LOST: Final = 1
"""How many recordings may be lost in a pass before it goes on without the cache."""
_CHUNKWISE: Final = 1024
"""How many elements to produce at once for other processes; the writer asks the pipeline for fewer at first."""
_ASK_AGAIN_S: Final = 1.0
_USER_CODE_S: Final = 0.5
"""How long leaving waits for a thread that is in user code."""


class Alone(Exception):
    """From here on the reader runs the pipeline for itself.

    Attributes:
        entropy: What to run it with.
        position: Where it is to stand: the index of the first element behind the one that `error` stands for.
        source: The pipeline, if it stands there already.
        error: What an element failed with; it stands in its place, in front of `position`.
    """

    def __init__(
        self, entropy: int, position: int, source: Source | None = None, error: Exception | None = None
    ) -> None:
        super().__init__("not recorded")
        self.entropy = entropy
        self.position = position
        self.source = source
        self.error = error

    def take_source(self) -> Source | None:
        """The pipeline, which then is the caller's to close."""
        source, self.source = self.source, None
        return source


class Recorder:
    """All that this process has to do with the recordings of one shelf.

    Args:
        shelf: Where they are.
        plan: How to record.
        on_close: Called after the last reader has left.
    """

    _number: int
    _store: Store
    _slots: Slots
    _writer: Writer

    def __init__(self, shelf: Shelf, plan: Plan, on_close: Callable[[Recorder], None]) -> None:
        self._shelf = shelf
        self.key = shelf.key
        self._plan = plan
        self._on_close = on_close
        self._pid = os.getpid()
        # Reentrant: a collection of garbage may drop an iterator, and cancel its reader, while its thread holds this.
        self._lock = threading.RLock()
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._readers: set[Reader] = set()
        self._notices: deque[tuple[str, str, str]] = deque()
        self._driver = threading.Lock()
        """Held by the recorder's thread for good: one that is started besides, as after an interrupt, ends at once."""
        self._ident = 0
        self._closed = self._opened = False
        self._watch = Watch(plan.lease_s)
        self._poll = _FIRST_POLL_S
        self._asked: tuple[int, float] = (-1, 0.0)
        """Up to which element others have asked for more, and when that was last looked at."""
        self._asking: tuple[int, float] = (-1, 0.0)
        """The element that others were last asked for, and when."""
        self._fresh = False
        """Whether the files that the recording was made from have been looked at."""
        self._problem: tuple[Store, DataLossError | Unwritable] | None = None
        """What a reader met when it read a frame."""
        self._lost = 0
        self._off: DsnbError | None = None
        self._unreadable = False

    @property
    def _log(self) -> Log:
        return self._slots.log

    # ---- readers, each on its own thread

    def admit(self, reader: Reader) -> bool:
        """Take one more reader; False if the last one has just left, or this is a copy in a forked process."""
        if self._pid != os.getpid():
            return False
        with self._lock:
            if not self._closed:
                self._readers.add(reader)
            return not self._closed

    def note_cancelled(self) -> None:
        """A reader was cancelled; if all were, the pipeline is, too."""
        if self._pid != os.getpid():
            return
        with self._lock:
            if self._opened and all(reader.cancelled for reader in self._readers):
                self._writer.cancel()
        self._bell.put(None)

    def leave(self, reader: Reader) -> None:
        """A reader is done. After the last one, what was produced is committed and the lease given back."""
        if self._pid != os.getpid():
            return
        with self._lock:
            self._readers.discard(reader)
            last = not self._readers and not self._closed
            self._closed = self._closed or last
        unused = reader.alone.take_source() if reader.alone is not None else None
        if unused is not None:
            unused.close()
        if last:
            self._bell.put(None)
            if self._driver.acquire(blocking=False):
                self._put_away()  # no thread was ever needed
            elif self._ident != threading.get_ident():
                self._wait_for_end()
        self._tell()

    def _wait_for_end(self) -> None:
        """Wait until everything is committed. User code may take as long as it likes; it is not waited for."""
        in_user_code = 0.0
        while in_user_code < _USER_CODE_S:
            with contextlib.suppress(queue.Empty):
                self._ended.get(timeout=_LOOK_S / 5)
                return
            in_user_code = in_user_code + _LOOK_S / 5 if self._opened and self._writer.in_user_code else 0.0

    def frame_at(self, reader: Reader, want: int) -> tuple[int, Frame] | None:
        """The frame that holds the reader's next element, with the index of its first element; None at the end."""
        while self.reach(reader, reader.position + 1, want) > reader.position:
            with self._lock:
                held, store = self._writer.held(reader.position), self._store
                committed = reader.position < self._log.elements
                first, place = self._log.frame_at(reader.position) if committed else (0, None)
            if held is not None:
                return held
            if place is not None:
                try:
                    return first, reader.shield.call(partial(store.frame, place)) if store.remote else store.frame(
                        place
                    )
                except (DataLossError, Unwritable) as problem:
                    with self._lock:
                        self._problem = self._problem or (store, problem)
        return None

    def reach(self, reader: Reader, end: int, want: int) -> int:
        """Wait until there are `end` elements, or all.

        Returns:
            How many there are.
        """
        reader.wanted = end, want
        try:
            while True:
                self._check(reader)
                with self._lock:
                    if self._reached(end):
                        return self._writer.tail
                if not self._driver.locked() and not start_thread(self._run, "dsnb-cache-recorder"):
                    raise self._without_thread(reader)
                self._bell.put(None)
                with contextlib.suppress(queue.Empty):
                    reader.woken.get(timeout=_LOOK_S)
        finally:
            reader.wanted = None
            self._tell()

    def _check(self, reader: Reader) -> None:
        if self._pid != os.getpid():
            raise FailedPreconditionError(
                "this iterator was begun in the process that this one was forked from",
                did="nothing was read",
                hint="call iter(dataset) in this process",
            )
        if reader.cancelled:
            raise CancelledError("reading was stopped")
        error, reader.error = reader.error, None
        if error is not None:
            raise error
        if reader.alone is not None:
            raise reader.alone

    def _reached(self, end: int) -> bool:
        if not self._opened or self._problem is not None or self._unreadable or self._log.abandoned:
            return False
        if not self._fresh:
            return False
        return self._writer.tail >= end or self._log.ended

    def _without_thread(self, reader: Reader) -> Alone:
        self._note(
            "no thread can be started to record",
            "the pass goes on without the cache",
            "look for threads that do not end, and for limits of the container",
        )
        return Alone(self._entropy(), reader.position)

    def _note(self, what: str, did: str, hint: str) -> None:
        self._notices.append((what, did, hint))

    def _tell(self) -> None:
        """Issue the warnings of the recorder's thread in the thread of a reader, so that they name the user's line."""
        while self._notices:
            warn(*self._notices.popleft())

    # ---- the recorder's thread

    def _run(self) -> None:
        if not self._driver.acquire(blocking=False):
            return
        self._ident = threading.get_ident()
        try:
            while self._turn():
                self._wake()
        except BaseException:
            self._driver.release()  # the next reader that waits starts another thread
            raise
        self._put_away()

    def _turn(self) -> bool:
        """Do what is to be done next; False when all readers have left."""
        with self._lock:
            if self._closed:
                return False
            reader = next(filter(self._waits, self._readers), None)
        try:
            self._act(reader)
        except Unwritable as refusal:
            self._switch_off(refusal.page)
        except Gone as loss:
            self._lose(loss.page)
        except PipelineFailed as failure:
            self._raise_in(reader, failure.error)
        except DsnbError as error:
            self._raise_in(reader, error)
        except Exception as error:  # noqa: BLE001 - stores raise whatever their libraries do, and never end a pass
            self._switch_off(UnavailableError(f"recording to {self._place} failed: {type(error).__name__}: {error}"))
        return True

    def _act(self, reader: Reader | None) -> None:
        if self._problem is not None:
            (store, problem), self._problem = self._problem, None
            self._mend(store, problem)
        elif reader is None:
            self._rest()
        elif self._off is not None:
            self._raise_in(reader, self._alone(reader))
        elif not self._opened:
            self._open(max(1, self._shelf.newest()))
        elif self._writer.holder:
            end, want = reader.wanted or (0, 1)
            self._produce(reader, max(want, end - self._writer.tail))
        else:
            self._follow(reader)

    def _waits(self, reader: Reader) -> bool:
        wanted = reader.wanted
        served = reader.cancelled or reader.alone is not None or reader.error is not None
        return wanted is not None and not served and not self._reached(wanted[0])

    def _wake(self) -> None:
        with self._lock:
            for reader in self._readers:
                if reader.wanted is not None and reader.woken.empty() and not self._waits(reader):
                    reader.woken.put(None)

    def _raise_in(self, reader: Reader | None, error: Exception) -> None:
        if reader is not None and isinstance(error, Alone):
            reader.alone = error
        elif reader is not None:
            reader.error = error

    def _listen(self, seconds: float | None) -> None:
        """Wait until a reader wants something, or the time is over."""
        with contextlib.suppress(queue.Empty):
            self._bell.get(timeout=seconds)
            while True:
                self._bell.get_nowait()

    def _open(self, number: int) -> None:
        store = self._shelf.open(number)
        slots = Slots(store, self._lock)
        writer = Writer(store, slots, self._plan, self._lock)
        with self._lock:
            self._number, self._store, self._slots, self._writer = number, store, slots, writer
            self._opened, self._settled, self._fresh = True, False, False
            self._asked = self._asking = (-1, 0.0)

    @property
    def _place(self) -> str:
        return self._store.place if self._opened else without_password(self.key[0])

    # ---- writing

    def _produce(self, reader: Reader | None, want: int) -> None:
        """Run the pipeline for one run of elements; without a reader, for one of another process."""
        try:
            self._writer.produce(want)
        except CancelledError:
            # All readers there were had been cancelled, and the pipeline with them; one that came since begins anew.
            self._writer.give_back()
            self._writer.end_source()
        except PipelineFailed as failure:
            position = self._writer.tail
            source = self._writer.source_at(position) if reader is not None else None
            self._end_at_failure(reader)
            if reader is None:
                self._writer.end_source()
            self._raise_in(reader, Alone(self._entropy(), position + 1, source, failure.error))

    def _end_at_failure(self, reader: Reader | None) -> None:
        try:
            self._writer.give_back()
        except (Unwritable, Gone) as refusal:
            self._switch_off(refusal.page)
        else:
            if reader is not None:  # else the process that asked for the element takes the lease, and meets its error
                pipeline = self._plan.begin.pipeline
                self._note(
                    f"an element of {pipeline} failed, behind {self._log.elements:,} that are recorded",
                    "the rest of this pass runs the pipeline; the next one tries that element again",
                    "let the function return something for each element, or leave failing ones out in front of `cache`",
                )

    def _rest(self) -> None:
        """While no reader of this process waits: produce for others, commit, give the lease back after a while."""
        if not self._opened or not self._writer.holder or not self._store.shared:
            self._listen(None)
        elif self._is_asked():
            self._produce(None, _CHUNKWISE)
        elif self._writer.idle_s >= self._plan.lease_s:
            self._writer.give_back()
        else:
            self._writer.commit_if_due()
            self._listen(min(self._store.poll, self._plan.lease_s / 4))

    def _is_asked(self) -> bool:
        """Whether a reader of another process waits for an element that is not committed."""
        now = time.monotonic()
        position, looked = self._asked
        if position < self._log.elements and now - looked >= self._store.poll:
            self._asked = position, _ = self._store.asked(), now
        return position >= self._log.elements

    # ---- following

    def _follow(self, reader: Reader) -> None:
        position = (reader.wanted or (1, 1))[0] - 1
        try:
            if self._slots.refresh():
                self._poll = _FIRST_POLL_S
        except DataLossError as damage:
            self._lose(damage)
            return
        self._settle_once()
        if self._log.begin is None:
            self._begin()
            return
        if not self._fresh and self._is_stale():
            self._move()  # others may end this one
            return
        self._fresh = True
        seen = any(known.position for known in self._readers)
        match decide(self._log, position, seen=seen, holder_lost=self._holder_lost()):
            case Next.TAKE:
                self._writer.take()
            case Next.WAIT:
                self._ask(position)
                self._listen(self._poll)
                self._poll = min(2 * self._poll, self._store.poll)
            case Next.ABANDON:
                self._slots.claim(Abandon(why="its writer stopped, and the pipeline cannot be repeated"))
            case Next.MOVE:
                loss = DataLossError(f"the recording in {self._place} was given up again: {self._log.abandoned}")
                self._lose(loss, told=True)
            case Next.STRANDED:
                self._raise_in(reader, self._alone(reader))

    def _is_stale(self) -> bool:
        """Whether a file that the recording was made from has changed since, and nobody here has read from it yet."""
        if not self._store.shared or any(known.position for known in self._readers):
            return False
        change = first_change(self._log.files)
        if change:
            self._note(change, f"it is recorded anew in {self._place}", "")
        return bool(change)

    def files(self) -> Sequence[FileNote]:
        """The files that were opened for what can be read."""
        with self._lock:
            return (*self._log.files, *self._writer.files) if self._opened else ()

    def _begin(self) -> None:
        why = self._shelf.explain() if self._number == 1 else ""
        if self._slots.claim(self._plan.begin) and why:
            self._note(f"the pipeline has changed: {why}", f"it is recorded anew in {self._place}", "")

    def _settle_once(self) -> None:
        """Finish the work of a writer that died while it put its recording in order."""
        if not self._settled and self._log.ended:
            with contextlib.suppress(Unwritable, Gone):
                self._store.settle(self._slots.records)
        self._settled = True

    def _ask(self, position: int) -> None:
        """Let the writer, whose own readers may be slow, know what is wanted here."""
        now = time.monotonic()
        asked, when = self._asking
        if asked != position or now - when >= _ASK_AGAIN_S:
            self._store.ask(position)
            self._asking = position, now

    def _holder_lost(self) -> bool:
        holder = self._log.holder
        if holder is None:
            return False
        process = holder.holder.rpartition("-")[0]
        if process == here().short():
            return holder.holder not in HOLDERS
        if not self._store.shared:
            return True  # this process is a fork of the holder's, and the memory a copy of its memory
        return bool(is_gone(process)) or self._watch.lost(
            holder.epoch, self._store.pulse(holder.epoch), time.monotonic()
        )

    # ---- when it does not go on

    def _mend(self, store: Store, problem: DataLossError | Unwritable) -> None:
        """What is committed cannot be read: close this recording, for all, and go over to the next."""
        if store is not self._store:
            return  # it was given up already
        if isinstance(problem, Unwritable):
            self._unreadable = True
            raise problem
        try:
            while not self._log.abandoned and not self._slots.claim(Abandon(why=problem.what)):
                self._slots.refresh()
        except Unwritable as refusal:
            self._unreadable = True
            self._note(problem.what, "nothing of it was used", problem.hint)
            self._switch_off(refusal.page)
        except (DataLossError, Gone):
            self._lose(problem)  # the log is lost as well: all who read it find that out
        else:
            self._lose(problem)

    def _lose(self, what: DsnbError, *, told: bool = False) -> None:
        """What is recorded is lost: begin the next recording; or go on without, where that is no use.

        Args:
            what: Why.
            told: Whether another process has warned of it.
        """
        seen = any(reader.position for reader in self._readers)
        self._lost += seen or not told
        again = self._lost <= _MOST_LOST and (self._repeatable() or not seen)
        did = "it is recorded anew" if again else "nothing of it was used; the pass goes on without the cache"
        if not (told and again):
            self._note(what.what, did, what.hint)
        if again:
            self._writer.drop()
            self._move()
        else:
            self._off, self._unreadable = what, True
            self._writer.lay_down()

    def _move(self) -> None:
        """Go over to the next recording, with the same entropy: what is repeatable goes on as it began."""
        self._plan = replace(self._plan, begin=replace(self._plan.begin, entropy=self._entropy()))
        before = self._store
        self._open(max(self._number + 1, self._shelf.newest()))
        before.close()

    def _entropy(self) -> int:
        begin = self._log.begin if self._opened else None
        return (begin or self._plan.begin).entropy

    def _repeatable(self) -> bool:
        begin = self._log.begin if self._opened else None
        return (begin or self._plan.begin).repeatable

    def _switch_off(self, page: DsnbError) -> None:
        """Stop recording in this process; readers read what there is and then go on alone."""
        if self._off is None:
            self._note(page.what, page.did or "the pass goes on without the cache", page.hint)
        self._off = self._off or page
        if self._opened:
            self._writer.lay_down()

    def _alone(self, reader: Reader) -> Exception:
        source = self._writer.source_at(reader.position) if self._opened else None
        if source is None and reader.position and not self._repeatable():
            return self._stranded()
        return Alone(self._entropy(), reader.position, source)

    def _stranded(self) -> DsnbError:
        holder = self._log.holder
        return FailedPreconditionError(
            f"the rest of the recording in {self._place} will not come: "
            f"{holder.name if holder else 'its writer'} stopped after {self._log.elements:,} elements, "
            "and running the pipeline again would give others",
            did="what was recorded up to there was read",
            hint="leave `deterministic=False` out in front of `cache`; or begin again",
        )

    def _put_away(self) -> None:
        """After the last reader."""
        try:
            if self._opened:
                with contextlib.suppress(Exception):  # what a store refuses now costs the next run a chunk
                    self._writer.give_back()
                self._writer.drop()
                self._store.close()
            self._shelf.close()
        finally:
            self._on_close(self)
            self._ended.put(None)
