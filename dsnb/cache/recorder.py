"""Records and reads one recording for all readers of this process: the shell around `cache/recording`.

Everybody reads from the recording; whoever is first at its end, and finds nobody writing, takes the lease and runs the
pipeline, on the thread that wants an element. So nothing is produced that nobody asked for, and one process that reads
a dataset twice at once (a `zip` with itself) needs no thread to do so. What is produced is readable in this process at
once, and committed when it fills a chunk or is a second old. A keeper thread shows the pulse while elements are on
their way, and gives the lease back when nobody here has asked for one for a while: a slow consumer holds nobody up.

At any time one thread *drives*: it alone changes the log, the pending frames and the source. Others read.

Where recording is not possible (a full disk) or ends (an element failed), `Alone` hands the reader its pipeline back.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from dsnb.cache.backends import Gone, Shelf, Store, Unwritable, warn
from dsnb.cache.process import here, is_gone
from dsnb.cache.recording import Abandon, Log, Next, Watch, decide
from dsnb.cache.slots import Slots
from dsnb.cache.writer import HOLDERS, Plan, Source, Writer
from dsnb.elements.frame import Frame
from dsnb.errors import CancelledError, DataLossError, DsnbError, FailedPreconditionError

if TYPE_CHECKING:
    from dsnb.cache.reader import Reader

_LOOK_S = 0.25
_FIRST_POLL_S = 0.002


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


class Recorder:
    """All that this process has to do with the recordings of one shelf.

    Args:
        shelf: Where they are.
        plan: How to record.
        on_close: Called after the last reader has left.
    """

    def __init__(self, shelf: Shelf, plan: Plan, on_close: Callable[[Recorder], None]) -> None:
        self._shelf = shelf
        self.key = shelf.key
        self._plan = plan
        self._on_close = on_close
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._readers: set[Reader] = set()
        self._driving = self._closed = False
        self._watch = Watch(plan.lease_s)
        self._poll = _FIRST_POLL_S
        self._off: DsnbError | None = None
        self._opened = False
        self._open(max(1, shelf.newest()))

    def _open(self, number: int) -> None:
        store = self._shelf.open(number)
        slots = Slots(store, self._changed)
        writer = Writer(store, slots, self._plan, self._changed, self._keep)
        with self._changed:
            self._number, self._store, self._slots, self._writer = number, store, slots, writer

    @property
    def _log(self) -> Log:
        return self._slots.log

    # ---- readers

    def admit(self, reader: Reader) -> bool:
        """Take one more reader; False if the last one has just left, or this is a copy in a forked process."""
        if self._pid != os.getpid():
            return False
        with self._changed:
            if not self._closed:
                self._readers.add(reader)
            return not self._closed

    def note_cancelled(self) -> None:
        """A reader was cancelled: wake it, and if all were, the pipeline too."""
        if self._pid != os.getpid():
            return
        with self._changed:
            self._changed.notify_all()
            if not all(reader.cancelled.is_set() for reader in self._readers):
                return
        self._writer.cancel()

    def leave(self, reader: Reader) -> None:
        """A reader is done; after the last one everything is put away."""
        if self._pid != os.getpid():
            return
        with self._changed:
            self._readers.discard(reader)
            if self._readers or self._closed or self._driving:
                return  # whoever drives sees to it
            self._closed = self._driving = True
        self._put_away()

    def frame_at(self, reader: Reader, want: int) -> tuple[int, Frame] | None:
        """The frame that holds the reader's next element, with the index of its first element; None at the end."""
        while self.reach(reader, reader.position + 1, want) > reader.position:
            with self._changed:
                held, store = self._writer.held(reader.position), self._store
                committed = reader.position < self._log.elements
                first, place = self._log.frame_at(reader.position) if committed else (0, None)
            if held is not None:
                return held
            if place is not None:
                try:
                    return first, store.frame(place)
                except DataLossError as damage:
                    self._mend(reader, store, damage)
                except Unwritable as refusal:
                    with self._drive(reader):
                        self._switch_off(refusal.page)
                        raise self._alone(reader) from None
        return None

    def reach(self, reader: Reader, end: int, want: int) -> int:
        """Wait until there are `end` elements, or all; drive if nobody else does.

        Returns:
            How many there are.
        """
        while True:
            with self._changed:
                while not self._reached(end) and self._driving:
                    self._check(reader)
                    self._changed.wait(_LOOK_S)
                if self._reached(end):
                    return self._writer.tail
            with self._drive(reader):
                if not self._reached(end):
                    self._step(reader, end - 1, want)

    def _reached(self, end: int) -> bool:
        return not self._log.abandoned and (self._writer.tail >= end or self._log.ended)

    def _check(self, reader: Reader) -> None:
        if reader.cancelled.is_set():
            raise CancelledError("reading was stopped")
        if self._pid != os.getpid():
            raise FailedPreconditionError(
                "this iterator was begun in the process that this one was forked from",
                did="nothing was read",
                hint="call iter(dataset) in this process",
            )

    # ---- driving

    @contextmanager
    def _drive(self, reader: Reader) -> Iterator[None]:
        with self._changed:
            self._check(reader)
            while self._driving:
                self._changed.wait(_LOOK_S)
                self._check(reader)
            self._driving = True
        try:
            yield
        finally:
            self._stop_driving()

    def _stop_driving(self) -> None:
        with self._changed:
            last = not self._readers and not self._closed
            self._closed = self._closed or last
            self._driving = last
            self._changed.notify_all()
        if last:
            self._put_away()

    def _step(self, reader: Reader, position: int, want: int) -> None:
        """One step towards the element at `position`."""
        if self._off is not None:
            raise self._alone(reader)
        try:
            if self._writer.holder:
                self._produce(reader, want)
            else:
                self._follow(reader, position)
        except Unwritable as error:
            self._switch_off(error.page)
        except Gone as error:
            warn(error.page.what, error.page.did, error.page.hint)
            self._writer.drop()
            if any(known.position for known in self._readers) and not self._repeatable():
                raise error.page from None
            self._move()

    def _produce(self, reader: Reader, want: int) -> None:
        try:
            self._writer.produce(want)
        except CancelledError:
            self._check(reader)
            # All readers before this one were cancelled, and the pipeline with them.
            self._writer.give_back()
            self._writer.end_source()
        except (Unwritable, Gone):
            raise
        except Exception as error:  # noqa: BLE001 - whatever user code raises belongs to its element
            position = self._writer.tail
            source = self._writer.source_at(position)
            self._end_at_failure()
            raise Alone(self._entropy(), position + 1, source, error) from None

    def _end_at_failure(self) -> None:
        try:
            self._writer.give_back()
        except (Unwritable, Gone) as refusal:
            self._switch_off(refusal.page)
        else:
            self._warn_failed()

    def _follow(self, reader: Reader, position: int) -> None:
        try:
            if self._slots.refresh():
                self._poll = _FIRST_POLL_S
        except DataLossError as damage:
            self._warn_damaged(damage)
            self._move()
            return
        self._settle_once()
        if self._log.begin is None:
            self._begin()
            return
        seen = any(known.position for known in self._readers)
        match decide(self._log, position, seen=seen, holder_lost=self._holder_lost()):
            case Next.TAKE:
                self._writer.take()
            case Next.WAIT:
                reader.cancelled.wait(self._poll)
                self._poll = min(2 * self._poll, self._store.poll)
            case Next.ABANDON:
                self._slots.claim(Abandon(why="its writer stopped, and the pipeline cannot be repeated"))
            case Next.MOVE:
                self._move()
            case Next.STRANDED:
                raise self._alone(reader)

    def _begin(self) -> None:
        why = self._shelf.explain() if self._number == 1 else ""
        if self._slots.claim(self._plan.begin) and why:
            warn(f"the pipeline has changed: {why}", f"it is recorded anew in {self._store.place}", "")

    def _settle_once(self) -> None:
        """Finish the work of a writer that died while it put its recording in order."""
        if not self._opened and self._log.ended:
            with contextlib.suppress(Unwritable, Gone):
                self._store.settle(self._slots.records)
        self._opened = True

    def _holder_lost(self) -> bool:
        holder = self._log.holder
        if holder is None:
            return False
        process = holder.holder.rpartition("-")[0]
        if process == here().short():
            return holder.holder not in HOLDERS
        return bool(is_gone(process)) or self._watch.lost(
            holder.epoch, self._store.pulse(holder.epoch), time.monotonic()
        )

    def _keep(self, writer: Writer, ended: threading.Event) -> None:
        """What the keeper does each quarter of a lease."""
        with self._changed:
            if ended.is_set():
                return
            busy, self._driving = self._driving, True
        if busy:
            writer.beat()
            return
        try:
            writer.rest()
        except (Unwritable, Gone) as error:
            self._switch_off(error.page)
        finally:
            self._stop_driving()

    # ---- when it does not go on

    def _mend(self, reader: Reader, store: Store, damage: DataLossError) -> None:
        """What is committed cannot be read: close this recording, for all, and go over to the next."""
        with self._drive(reader):
            if store is not self._store:
                return
            self._warn_damaged(damage)
            self._writer.drop()
            try:
                while not self._log.abandoned and not self._slots.claim(Abandon(why=damage.what)):
                    self._slots.refresh()
            except Unwritable as error:
                self._switch_off(error.page)
            except (DataLossError, Gone):
                pass  # the log itself: all who read it find that out
            if reader.position and not self._repeatable():
                raise damage
            if self._off is None:
                self._move()
            else:
                raise self._alone(reader)

    def _move(self) -> None:
        """Go over to the next recording, with the same entropy: what is repeatable goes on as it began."""
        self._plan = replace(self._plan, begin=replace(self._plan.begin, entropy=self._entropy()))
        before = self._store
        self._open(max(self._number + 1, self._shelf.newest()))
        before.close()

    def _entropy(self) -> int:
        return (self._log.begin or self._plan.begin).entropy

    def _repeatable(self) -> bool:
        return (self._log.begin or self._plan.begin).repeatable

    def _switch_off(self, page: DsnbError) -> None:
        """Stop recording in this process; readers read what there is and then go on alone."""
        if self._off is None:
            warn(page.what, page.did or "the pass goes on without the cache", page.hint)
        self._off = self._off or page
        self._writer.lay_down()

    def _alone(self, reader: Reader) -> Exception:
        source = self._writer.source_at(reader.position)
        if source is None and reader.position and not self._repeatable():
            return self._stranded()
        return Alone(self._entropy(), reader.position, source)

    def _stranded(self) -> DsnbError:
        holder = self._log.holder
        return FailedPreconditionError(
            f"the rest of the recording in {self._store.place} will not come: "
            f"{holder.name if holder else 'its writer'} stopped after {self._log.elements:,} elements, "
            "and running the pipeline again would give others",
            did="what was recorded up to there was read",
            hint="leave `deterministic=False` out in front of `cache`; or begin again",
        )

    def _warn_damaged(self, damage: DataLossError) -> None:
        warn(damage.what, "nothing of it was used; it is recorded anew", damage.hint)

    def _warn_failed(self) -> None:
        warn(
            f"an element of {self._plan.begin.pipeline} failed, behind {self._log.elements:,} that are recorded",
            "the rest of this pass runs the pipeline; the next one tries that element again",
            "let the function return something for each element, or leave failing ones out in front of `cache`",
        )

    def _put_away(self) -> None:
        """After the last reader."""
        try:
            with contextlib.suppress(Unwritable, Gone):
                self._writer.give_back()
        finally:
            self._writer.drop()
            self._store.close()
            self._shelf.close()
            self._on_close(self)
