"""The caller's end of a control stream: reports go up at an interval or when asked for, messages come down.

Both workers and clients keep one to the dispatcher. It is opened again when it breaks, until it is closed.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from dsnb.errors import CancelledError, DataLossError, DeadlineExceededError, DsnbError, UnavailableError
from dsnb.wire.channel import Channel, Stream
from dsnb.wire.methods import Method

Up = TypeVar("Up")
Down = TypeVar("Down")

_log = logging.getLogger(__name__)

_RETRY_S = 0.1
_MAX_FAILURES = 3
"""How often in a row the other side may fail in a way that it did not think of."""
_STABLE_S = 5.0
"""A connection that held so long begins a new row."""
_FINAL_REPORT = -1


class ControlStream(Generic[Up, Down]):
    """One end of a control stream, with a thread that takes the messages.

    Args:
        name: Of the thread.
        channel: The connection; given back when the stream is closed.
        method: The call.
        report: Makes a report that answers the message of that number; the first one of a connection gets number 0.
        receive: Takes a message. What it raises is logged and ends nothing: it is the receiver's to handle.
        interval_s: Longest silence between two reports.
        delay_s: How long to wait before the first connection: who is let go until then needs none.
        on_failure: Learns that the other side refuses this stream for good, or fails again and again.
        lease_s: A longer silence of this process's own makes `lapsed` true: it was stopped, or something held its
            interpreter, and the other side may have given it up.
        should_give_up: Whether to give up when the other side has been gone for so many seconds; never, if left out.
    """

    def __init__(
        self,
        name: str,
        channel: Channel,
        method: Method[Up, Down],
        *,
        report: Callable[[int, bool], Up],
        receive: Callable[[Down], None],
        interval_s: float,
        delay_s: float = 0.0,
        on_failure: Callable[[DsnbError], None],
        lease_s: float = math.inf,
        should_give_up: Callable[[float], bool] = lambda _gone_s: False,
    ) -> None:
        self._channel = channel
        self._method = method
        self._report = report
        self._receive = receive
        self._interval_s = interval_s
        self._delay_s = delay_s
        self._on_failure = on_failure
        self._should_give_up = should_give_up
        self._closing = threading.Event()
        self._released = False
        self._report_requests: SimpleQueue[int | None] = SimpleQueue()
        self._call: Stream[Down] | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.connected = threading.Event()
        """Set while messages come."""
        self.broken_since: float | None = time.monotonic()
        """Since when there has been no connection, by the monotonic clock."""
        self._lease_s = lease_s
        self._reported_at = time.monotonic()
        self._lapsed = False

    def start(self) -> None:
        self._thread.start()

    def report_now(self, number: int = 0) -> None:
        """Send a report without waiting for the interval."""
        self._report_requests.put(number)

    def close(self, timeout: float = 2.0, *, released: bool = False) -> None:
        """Send a last report, end the stream and wait for its thread; the second call does nothing.

        Args:
            timeout: Seconds to wait for the other side.
            released: Whether the other side knows already, and needs no last report.
        """
        if self._closing.is_set():
            return
        self._released = released
        self._closing.set()
        self._report_requests.put(None if released else _FINAL_REPORT)
        if self._thread.ident is None:  # never started, so nobody else gives the connection back
            self._channel.close()
        if self._thread is threading.current_thread() or not self._thread.is_alive():
            return
        self._thread.join(timeout)
        if self._thread.is_alive():
            if self._call is not None:
                self._call.cancel()
            self._thread.join(1.0)

    @property
    def lapsed(self) -> bool:
        """Whether this process was silent for longer than the lease since `renew` was called last."""
        return self._lapsed or time.monotonic() - self._reported_at > self._lease_s

    def renew(self) -> None:
        """Learn that the other side still knows this process."""
        self._reported_at, self._lapsed = time.monotonic(), False

    def wait_connected(self, timeout: float) -> None:
        """Wait for the first message.

        Raises:
            DeadlineExceededError: none came.
        """
        if not self.connected.wait(timeout):
            raise DeadlineExceededError(f"{self._channel.address} did not answer within {timeout:g} seconds")

    def _run(self) -> None:
        consecutive_failures = 0
        try:
            self._closing.wait(self._delay_s)
            while not self._released:
                began = time.monotonic()
                error = self._run_connection()
                self.connected.clear()
                self.broken_since = self.broken_since or time.monotonic()
                # An error without a class of its own is a bug over there, which may have met one message only.
                is_bug = type(error) is DsnbError
                consecutive_failures = consecutive_failures * (time.monotonic() - began < _STABLE_S) + is_bug
                if error is not None and (not is_bug or consecutive_failures > _MAX_FAILURES):
                    if not self._closing.is_set():
                        self._on_failure(error)
                    return
                gone_s = time.monotonic() - self.broken_since if self.broken_since is not None else 0.0
                if self._should_give_up(gone_s) and not self._closing.is_set():
                    self._on_failure(
                        UnavailableError(f"{self._channel.address} has not answered for {gone_s:.0f} seconds")
                    )
                    return
                if self._closing.wait(_RETRY_S):
                    return
        finally:
            self._channel.close()

    def _run_connection(self) -> DsnbError | None:
        """Keep one connection until it ends; what it ended with, unless coming back may help."""
        report_requests: SimpleQueue[int | None] = SimpleQueue()
        self._report_requests = report_requests
        if self._closing.is_set():  # close() may have put its word into the queue before this one
            report_requests.put(None if self._released else _FINAL_REPORT)
        try:
            self._call = self._channel.stream(self._method, self._reports(report_requests))
            for message in self._call:
                self.broken_since = None
                self.connected.set()
                self._deliver(message)
        except (UnavailableError, CancelledError, DataLossError):  # the last of a message that was damaged on its way
            return None
        except DsnbError as error:
            return error
        finally:
            report_requests.put(None)
            if self._call is not None:
                self._call.cancel()
        return None

    def _deliver(self, message: Down) -> None:
        try:
            self._receive(message)
        except Exception:  # noqa: BLE001 - the receiver may fail in any way
            # Without this stream a worker or a client is lost; one message that went wrong is not worth that.
            _log.exception("%s could not follow a message from %s", self._thread.name, self._channel.address)

    def _reports(self, report_requests: SimpleQueue[int | None]) -> Iterator[Up]:
        yield self._make_report(0, leaving=False)
        while True:
            try:
                number = report_requests.get(timeout=self._interval_s)
            except Empty:
                number = 0
            if number is None:
                return
            yield self._make_report(max(0, number), leaving=number == _FINAL_REPORT)
            if number == _FINAL_REPORT:
                return

    def _make_report(self, number: int, *, leaving: bool) -> Up:
        self._lapsed = self.lapsed
        self._reported_at = time.monotonic()
        return self._report(number, leaving)
