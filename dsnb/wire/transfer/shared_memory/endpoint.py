"""The reader's end: one socket and one mapping for each reading. Who waits for elements takes what comes over it."""

from __future__ import annotations

import threading
import time
from functools import lru_cache

from dsnb.errors import DsnbError, UnavailableError
from dsnb.limits import said
from dsnb.wire import forks
from dsnb.wire.codec import encode
from dsnb.wire.security import PROOF_HEADER, Caller, Proof, digest_of
from dsnb.wire.status import end_of_read, error_of
from dsnb.wire.transfer.handover import Opening, Piece, Reading, Sink
from dsnb.wire.transfer.headers import restore
from dsnb.wire.transfer.shared_memory.line import (
    COUNT,
    OPENING,
    Head,
    Kind,
    SharedMemoryRefused,
    connect,
    message,
    shown_text,
)
from dsnb.wire.transfer.shared_memory.memory import ConsumedPage
from dsnb.wire.transfer.shared_memory.views import Line

_LEAVE_S = 2.0
_BREAK_S = 0.5


class SharedMemoryEndpoint:
    """A worker on this host.

    Args:
        worker_uid: Which one.
        token: The service's.
    """

    def __init__(self, worker_uid: str, token: str) -> None:
        self._worker_uid = worker_uid
        self._token = token

    def open(self, opening: Opening, sink: Sink) -> Reading:
        """Begin to read a task.

        Raises:
            SharedMemoryRefused: there is no such worker on this host; what else goes wrong is told to the sink.
        """
        forks.check_grpc()
        caller, request = _caller(self._worker_uid), encode(opening.request())
        proof = caller.proof(self._token, OPENING, self._worker_uid, digest_of(request))
        line = Line(connect(self._worker_uid))
        return _SharedReading(line, opening.task_id, sink, caller, proof, request)


@lru_cache(maxsize=256)
def _caller(worker_uid: str) -> Caller:
    """This process's caller of a worker."""
    del worker_uid
    return Caller()


class _SharedReading(Reading):
    """One read of a task on this host. What comes is taken by who waits for it, or by a thread where nobody listens."""

    def __init__(self, line: Line, task_id: str, sink: Sink, caller: Caller, proof: Proof, request: bytes) -> None:
        self._line = line
        self._sink = sink
        self._caller = caller
        self._proof = proof
        self._proven = False
        self._left = threading.Event()
        self._over = False
        self._hearing = threading.Lock()
        self._ears = sink.ears
        self._thread: threading.Thread | None = None
        page = ConsumedPage()
        self._cell = page.cell
        shown = shown_text(proof)
        try:
            line.begin(message(Kind.OPEN, len(shown), text=shown + request), page.descriptor)
        finally:
            page.close_descriptor()
        if self._ears is not None:
            self._ears.add(line.descriptor, self._hear)
            return
        name = f"dsnb-read-{task_id}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def consumed_cell(self) -> memoryview:
        """A page that the worker sees."""
        return self._cell

    def credit(self, granted: int, consumed: int, max_bytes: int, received: int = 0, taken: int = 0) -> None:
        text = COUNT.pack(taken) if taken > consumed else b""
        self._line.say(message(Kind.CREDIT, granted, consumed, max_bytes, received, text))

    def recall(self) -> None:
        self._line.say(message(Kind.RECALL))

    def leave(self, consumed: int) -> None:
        if self._left.is_set():
            return
        self._left.set()
        self._line.say(message(Kind.LEAVE, b=consumed))
        if threading.current_thread() is self._thread:
            return
        self._await_end(_LEAVE_S)  # the worker answers when it has taken the leaving in
        if not self._over:
            self._line.break_off()
            self._await_end(_BREAK_S)

    def _await_end(self, seconds: float) -> None:
        if self._thread is not None:
            self._thread.join(seconds)
            return
        deadline = time.monotonic() + seconds
        while not self._over and (left := deadline - time.monotonic()) > 0:
            self._line.wait(left)
            self._hear()

    def _run(self) -> None:
        while not self._over:
            self._hear(wait=True)

    def _hear(self, *, wait: bool = False) -> None:
        """Take what has come."""
        error: Exception | None = None
        with self._hearing:
            if self._over:
                return
            try:
                self._line.hear(wait=wait)
                if self._take_all():
                    return
            except DsnbError as failed:  # first: some of ours are connection errors too
                error = failed
            except (EOFError, ConnectionError):
                pass
            except OSError as failed:
                error = SharedMemoryRefused(f"this process cannot look at the worker's memory ({said(failed)})")
            except Exception as failed:  # noqa: BLE001 - a bug: the reader must not wait for what will not come
                error = failed
            except BaseException:  # the user's, who may go on: what was in hand is asked for again
                self._end(UnavailableError("the reader was interrupted"))
                raise
            self._end(error or UnavailableError("the worker has gone"))

    def _end(self, error: Exception) -> None:
        self._over = True
        if self._ears is not None:
            self._ears.remove(self._line.descriptor)
        self._line.finish()
        if not self._left.is_set():
            self._sink.fail(error)

    def _take_all(self) -> bool:
        """Act on what has come whole, pieces that follow upon one another together; False behind the last message."""
        pieces: list[Piece] = []
        try:
            for head, text, body in self._line.messages():
                if not self._proven:
                    self._take_proof(head, text)
                elif head.kind == Kind.SLAB:
                    pieces.append(self._piece_in(head, text))
                elif head.kind == Kind.BODY:
                    pieces.append(restore(text, head.d, body))
                else:
                    self._sink.deliver_all(pieces)
                    pieces = []
                    if not self._take(head, text):
                        return False
        finally:
            if pieces:  # most often nothing has come
                self._sink.deliver_all(pieces)
        return True

    def _take_proof(self, head: Head, text: bytes) -> None:
        """Take the first message, before which nothing but the opening was sent.

        Raises:
            SharedMemoryRefused: it does not show that the other end is the worker.
        """
        if head.kind == Kind.REFUSED:
            raise SharedMemoryRefused(text.decode(errors="replace"))
        if head.kind != Kind.PROOF or not self._caller.accepts(self._proof, [(PROOF_HEADER, text)]):
            raise SharedMemoryRefused("what answers in this process's host does not prove that it is the worker")
        self._proven = True
        self._line.trust()

    def _piece_in(self, head: Head, text: bytes) -> Piece:
        """What a notice of a slab says: the whole frame, or some of it."""
        whole = restore(text, head.d, self._line.root(head.a, head.b))
        start, count = head.c >> 32, head.c & 0xFFFFFFFF
        part = count < whole.count
        return Piece(whole.frame, head.d + start, start, count, whole.incarnation) if part else whole

    def _take(self, head: Head, text: bytes) -> bool:
        """Act on a message that is no piece; False when it was the last."""
        if head.kind == Kind.END:
            self._sink.end()
        elif head.kind == Kind.RECALLED:
            self._sink.recalled(head.a)
        elif head.kind == Kind.PROGRESS:
            self._sink.progress(head.a, head.b)
        elif head.kind == Kind.REFUSED:
            raise SharedMemoryRefused(text.decode())
        elif head.kind == Kind.FAIL:
            raise end_of_read(error_of(text))
        return head.kind != Kind.BYE
