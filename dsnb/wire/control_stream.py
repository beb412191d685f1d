"""The caller's end of a control stream: sends reports at an interval or on request, and receives messages.

Each worker and each client keeps one to the dispatcher. It reconnects when the stream breaks, until it is closed.
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
MAX_FAILURES = 3
"""Internal errors in a row that the server may return before the stream gives up."""
_STABLE_S = 5.0
"""A connection that lasted this many seconds resets the count of failures."""
_CLOSE_S = 5.0
"""How long a final report may take, also on a busy machine: if it is cancelled, a clean leave may count as a death.
Only a server that is suspended, or that the network no longer reaches, makes the caller wait so long."""
_FINAL_REPORT = -1
_REPORT_SOON = -2

REPORT_SOON_S = 0.1
"""How long `report_soon` waits for more to report: half the interval at which readers ask whether a pass is over. A
report costs more than a short pass, of which there may be fifty in a second."""

HANG_TIMEOUT_S = 120.0
"""How long a server may leave calls unanswered although its control stream stands, before this is an error. It may be
suspended, or a notebook cell may hold its GIL for a minute; a process that hangs for good may keep its connections."""


class ControlStream(Generic[Up, Down]):
    """The caller's end of a control stream, with a thread that receives the messages.

    Args:
        name: The name of the thread.
        channel: The channel to the server; closed with the stream.
        method: The streaming call.
        report: Called with (number, leaving); returns the report that answers the message of that number. Unrequested
            reports, and the first one of each connection, have number 0. `leaving` marks the final report.
        receive: Called with each message. Its exceptions are logged and do not end the stream.
        interval_s: Seconds between two reports at most.
        delay_s: Seconds to wait before the first connection; a stream that is closed before needs none.
        on_failure: Called when the server refuses the stream for good, fails repeatedly, or is abandoned.
        lease_s: Seconds without a report after which `lapsed` is true: this process was stopped or its GIL was held,
            and the server may have given it up.
        should_give_up: Called with the seconds for which the server has been unreachable; returns whether to give up.
            By default never.
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
        """Set from the first message of a connection until the connection breaks."""
        self.broken_since: float | None = time.monotonic()
        """Monotonic time since which there is no connection; None while connected."""
        self._lease_s = lease_s
        self._reported_at = time.monotonic()
        self._lapsed = False

    def start(self) -> None:
        self._thread.start()

    def report_now(self, number: int = 0) -> None:
        """Send a report now, instead of at the end of the interval."""
        self._report_requests.put(number)

    def report_soon(self) -> None:
        """Send a report within `REPORT_SOON_S`, one for all calls until then."""
        self._report_requests.put(_REPORT_SOON)

    def close(self, timeout: float = _CLOSE_S, *, released: bool = False) -> None:
        """Send a final report, end the stream and wait for its thread. Further calls do nothing.

        Args:
            timeout: Seconds to wait for the server before the call is cancelled.
            released: Whether the server has already released this process, so that no final report is needed.
        """
        if self._closing.is_set():
            return
        self._released = released
        self._closing.set()
        self._report_requests.put(None if released else _FINAL_REPORT)
        if self._thread.ident is None:  # never started, so `_run` does not close the channel
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
        """Whether this process sent no report for longer than the lease, at any time since the last `renew`."""
        return self._lapsed or time.monotonic() - self._reported_at > self._lease_s

    def renew(self) -> None:
        """Restart the lease: the server has confirmed that it still knows this process."""
        self._reported_at, self._lapsed = time.monotonic(), False

    def wait_connected(self, timeout: float) -> None:
        """Wait until a connection has received its first message.

        Raises:
            DeadlineExceededError: no message arrived within `timeout` seconds.
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
                # A plain DsnbError is a bug in the server. It may affect one message only, so reconnecting may help.
                is_bug = type(error) is DsnbError
                consecutive_failures = consecutive_failures * (time.monotonic() - began < _STABLE_S) + is_bug
                if error is not None and (not is_bug or consecutive_failures > MAX_FAILURES):
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
        """Run one connection until it ends; returns its error, or None if reconnecting may help."""
        # A new queue for each connection: the generator of the broken one may still wait on the old queue, in a gRPC
        # thread, and would take requests that are meant for this connection.
        report_requests: SimpleQueue[int | None] = SimpleQueue()
        self._report_requests = report_requests
        if self._closing.is_set():  # close() may have put its sentinel into the previous queue
            report_requests.put(None if self._released else _FINAL_REPORT)
        try:
            self._call = self._channel.stream(self._method, self._reports(report_requests))
            for message in self._call:
                self.broken_since = None
                self.connected.set()
                self._deliver(message)
        except (UnavailableError, CancelledError, DataLossError):  # DataLossError: a damaged message
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
            # Ending the stream would lose the whole worker or client because of one message.
            _log.exception("%s could not follow a message from %s", self._thread.name, self._channel.address)

    def _reports(self, report_requests: SimpleQueue[int | None]) -> Iterator[Up]:
        yield self._make_report(0, leaving=False)
        due = time.monotonic() + self._interval_s
        while True:
            try:
                number = report_requests.get(timeout=max(0.0, due - time.monotonic()))
            except Empty:
                number = 0
            if number is None:
                return
            if number == _REPORT_SOON:
                due = min(due, time.monotonic() + REPORT_SOON_S)
                continue
            yield self._make_report(max(0, number), leaving=number == _FINAL_REPORT)
            if number == _FINAL_REPORT:
                return
            due = time.monotonic() + self._interval_s

    def _make_report(self, number: int, *, leaving: bool) -> Up:
        self._lapsed = self.lapsed
        self._reported_at = time.monotonic()
        return self._report(number, leaving)
