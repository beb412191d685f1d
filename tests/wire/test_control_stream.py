"""A control stream comes back when it breaks, says when it leaves, and is closed without waiting for anybody."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import grpc
import pytest

from dsnb.errors import DeadlineExceededError, DsnbError, FailedPreconditionError, NotFoundError, PermissionDeniedError
from dsnb.wire import control_stream
from dsnb.wire.channel import open_channel, open_channels
from dsnb.wire.control_stream import REPORT_SOON_S, ControlStream
from dsnb.wire.messages import ClientReport, ClientUpdate
from dsnb.wire.methods import FOLLOW
from tests.support.waiting import wait_for
from tests.wire.serving import TOKEN, address, port_of_nobody, serving


class Desk:
    """The other side: keeps the reports, answers each with its number, and sends what it is given."""

    def __init__(self) -> None:
        self.reports: list[ClientReport] = []
        self.calls = 0
        self.sending: SimpleQueue[ClientUpdate | Exception | None] = SimpleQueue()

    def follow(self, reports: Iterator[ClientReport], context: grpc.ServicerContext) -> Iterator[ClientUpdate]:
        self.calls += 1
        sending = self.sending = SimpleQueue()
        context.add_callback(lambda: sending.put(None))
        threading.Thread(target=self._take, args=(reports, sending), daemon=True).start()
        yield ClientUpdate(has_state=True)
        while (item := sending.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield item

    def _take(self, reports: Iterator[ClientReport], sending: SimpleQueue[Any]) -> None:
        try:
            for report in reports:
                self.reports.append(report)
        except Exception:  # noqa: BLE001 - grpc raises a bare Exception when the stream breaks
            return
        finally:
            sending.put(None)

    @property
    def handlers(self) -> dict[Any, Any]:
        return {FOLLOW: self.follow}


class Caller:
    """This side, as a reader or a worker has it."""

    def __init__(self, target: str, *, interval_s: float = 60.0, delay_s: float = 0.0, token: str = TOKEN) -> None:
        self.heard: list[ClientUpdate] = []
        self.failures: list[DsnbError] = []
        self.on_message: Callable[[ClientUpdate], None] = self.heard.append
        self.made = 0
        self.stream: ControlStream[ClientReport, ClientUpdate] = ControlStream(
            "control-test",
            open_channel(target, token),
            FOLLOW,
            report=self._report,
            receive=lambda update: self.on_message(update),  # noqa: PLW0108 - a test may set another one
            interval_s=interval_s,
            delay_s=delay_s,
            on_failure=self.failures.append,
        )

    @property
    def running(self) -> bool:
        """Whether the stream's thread runs."""
        return any(thread.name == "control-test" for thread in threading.enumerate())

    def _report(self, number: int, leaving: bool) -> ClientReport:
        self.made += 1
        return ClientReport(client_id="c", seq=number, leaving=leaving, elements=self.made)


@contextmanager
def calling(target: str, **settings: Any) -> Iterator[Caller]:
    caller = Caller(target, **settings)
    caller.stream.start()
    try:
        yield caller
    finally:
        caller.stream.close()


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_the_first_report_goes_at_once_and_messages_come(desk: Desk) -> None:
    with serving(desk.handlers) as server, calling(address(server)) as caller:
        caller.stream.wait_connected(10)
        wait_for(lambda: caller.heard == [ClientUpdate(has_state=True)], what="the first message")
        assert caller.stream.broken_since is None
        wait_for(lambda: desk.reports, what="the first report")
        assert (desk.reports[0].seq, desk.reports[0].leaving) == (0, False)
        desk.sending.put(ClientUpdate(finished=True))
        wait_for(lambda: caller.heard[1:] == [ClientUpdate(finished=True)], what="the message")


def test_reports_go_at_the_interval(desk: Desk) -> None:
    with serving(desk.handlers) as server, calling(address(server), interval_s=0.02):
        wait_for(lambda: len(desk.reports) >= 5, what="five reports")
        assert {report.seq for report in desk.reports} == {0}


def test_a_report_that_was_asked_for_goes_at_once_with_its_number(desk: Desk) -> None:
    with serving(desk.handlers) as server, calling(address(server)) as caller:
        caller.stream.wait_connected(10)
        caller.stream.report_now(7)
        caller.stream.report_now()
        wait_for(lambda: len(desk.reports) == 3, what="both reports")
        assert [report.seq for report in desk.reports] == [0, 7, 0]


def test_reports_that_can_wait_go_together_and_soon(desk: Desk) -> None:
    with serving(desk.handlers) as server, calling(address(server)) as caller:
        caller.stream.wait_connected(10)
        began = time.monotonic()
        for _ in range(100):
            caller.stream.report_soon()
        wait_for(lambda: len(desk.reports) > 1, what="the report")
        assert time.monotonic() - began >= REPORT_SOON_S
        assert len(desk.reports) < 10


def test_closing_is_prompt_and_the_last_report_says_leaving(desk: Desk) -> None:
    with serving(desk.handlers) as server:
        with calling(address(server)) as caller:
            caller.stream.wait_connected(10)
            began = time.monotonic()
            caller.stream.close()
            assert time.monotonic() - began < 4.0
            caller.stream.close()
        wait_for(lambda: desk.reports[-1].leaving, what="the last report")
        assert [report.leaving for report in desk.reports] == [False, True]
    assert caller.failures == []


def test_closing_at_once_still_says_leaving(desk: Desk) -> None:
    """Whatever the thread was doing when it was told: if it said anything, it says that it leaves."""
    with serving(desk.handlers) as server:
        for _ in range(20):
            before = len(desk.reports)
            with calling(address(server)):
                began = time.monotonic()
            assert time.monotonic() - began < 4.0
            if desk.reports[before:]:
                wait_for(lambda: desk.reports[-1].leaving, what="the last report")


def test_closing_while_a_connection_is_being_made_still_says_leaving(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The word to leave is not put where nobody looks any more."""

    def queue() -> SimpleQueue[Any]:
        caller.stream.close()
        return SimpleQueue()

    with serving(desk.handlers) as server:
        caller = Caller(address(server))
        monkeypatch.setattr(control_stream, "SimpleQueue", queue)
        caller.stream.start()
        wait_for(lambda: not caller.running, what="the stream to end")
        wait_for(lambda: desk.reports and desk.reports[-1].leaving, what="the last report")


def test_who_is_let_go_before_the_first_connection_makes_none(desk: Desk) -> None:
    with serving(desk.handlers) as server, calling(address(server), delay_s=60.0) as caller:
        began = time.monotonic()
        caller.stream.close(released=True)
        assert time.monotonic() - began < 4.0
        assert not caller.running
    assert caller.made == 0


def test_who_is_not_let_go_says_leaving_although_there_was_no_connection_yet(desk: Desk) -> None:
    with serving(desk.handlers) as server, calling(address(server), delay_s=60.0) as caller:
        caller.stream.close()
        wait_for(lambda: desk.reports and desk.reports[-1].leaving, what="the last report")


def test_closing_is_prompt_where_the_other_side_does_not_answer() -> None:
    over = threading.Event()

    def deaf(reports: Iterator[ClientReport], context: grpc.ServicerContext) -> Iterator[ClientUpdate]:
        yield ClientUpdate(has_state=True)
        over.wait(60)

    try:
        with serving({FOLLOW: deaf}) as server, calling(address(server)) as caller:
            caller.stream.wait_connected(10)
            began = time.monotonic()
            caller.stream.close(timeout=0.2)
            assert time.monotonic() - began < 4.0
            over.set()
    finally:
        over.set()


def test_closing_is_prompt_where_nobody_listens() -> None:
    with port_of_nobody() as port, calling(f"127.0.0.1:{port}") as caller:
        with pytest.raises(DeadlineExceededError, match=f"127.0.0.1:{port} did not answer within 0.2 seconds"):
            caller.stream.wait_connected(0.2)
        assert caller.stream.broken_since is not None
        began = time.monotonic()
        caller.stream.close()
        assert time.monotonic() - began < 4.0
    assert caller.failures == [], "somebody may come to listen there"


def test_a_receiver_may_close_its_own_stream(desk: Desk) -> None:
    with serving(desk.handlers) as server:
        caller = Caller(address(server))
        caller.on_message = lambda update: caller.stream.close()
        caller.stream.start()
        wait_for(lambda: not caller.running, what="the stream to end")
        assert desk.reports[-1].leaving


def test_a_restarted_server_on_the_same_port_is_found_again(desk: Desk) -> None:
    with serving(desk.handlers) as first, calling(address(first)) as caller:
        caller.stream.wait_connected(10)
        wait_for(lambda: desk.reports, what="the first report")  # the message that connects does not wait for it
        first.stop(0)
        wait_for(lambda: not caller.stream.connected.is_set(), what="the break to be seen")
        wait_for(lambda: caller.stream.broken_since is not None, what="the break to be dated")
        with serving(desk.handlers, port=first.port):
            caller.stream.wait_connected(20)
            wait_for(lambda: caller.stream.broken_since is None, what="the connection to count as whole")
            assert desk.calls == 2
            wait_for(lambda: len(desk.reports) == 2, what="the first report of the new connection")
            caller.stream.report_now(9)
            wait_for(lambda: desk.reports[-1].seq == 9, what="reports to go on")
            caller.stream.close()
            wait_for(lambda: desk.reports[-1].leaving, what="the last report")
    assert caller.failures == []


def test_a_stream_that_the_other_side_ends_is_opened_again(desk: Desk) -> None:
    with serving(desk.handlers) as server, calling(address(server)) as caller:
        caller.stream.wait_connected(10)
        desk.sending.put(None)
        wait_for(lambda: desk.calls == 2, what="the second connection")


def test_a_bug_of_the_other_side_is_no_refusal(desk: Desk) -> None:
    with serving(desk.handlers) as server, calling(address(server)) as caller:
        caller.stream.wait_connected(10)
        desk.sending.put(ZeroDivisionError("a bug of the dispatcher"))
        wait_for(lambda: desk.calls == 2, what="the second connection")
        assert caller.failures == []


@pytest.mark.parametrize("error", [ZeroDivisionError, DsnbError], ids=lambda error: error.__name__)
def test_a_bug_that_comes_again_and_again_is_told_and_ends_the_stream(error: type[Exception]) -> None:
    calls = []

    def broken(reports: Iterator[ClientReport], context: grpc.ServicerContext) -> Iterator[ClientUpdate]:
        calls.append(next(reports))
        yield ClientUpdate(has_state=True)
        raise error("the same each time")

    with serving({FOLLOW: broken}) as server, calling(address(server)) as caller:
        wait_for(lambda: not caller.running, what="the stream to end")
        [failure] = caller.failures
        assert type(failure) is DsnbError
        assert "the same each time" in failure.what
        assert len(calls) == control_stream.MAX_FAILURES + 1


@pytest.mark.parametrize("refusal", [NotFoundError, FailedPreconditionError])
def test_a_refusal_is_told_once_and_ends_the_stream(desk: Desk, refusal: type[DsnbError]) -> None:
    with serving(desk.handlers) as server, calling(address(server)) as caller:
        caller.stream.wait_connected(10)
        desk.sending.put(refusal("this client is unknown"))
        wait_for(lambda: not caller.running, what="the stream to end")
        assert [(type(error), error.what) for error in caller.failures] == [(refusal, "this client is unknown")]
        assert desk.calls == 1


def test_a_wrong_token_is_a_refusal(desk: Desk) -> None:
    with serving(desk.handlers) as server, calling(address(server), token="wrong") as caller:
        wait_for(lambda: caller.failures, what="the refusal")
        assert isinstance(caller.failures[0], PermissionDeniedError)
        assert not caller.stream.connected.is_set()


@pytest.mark.slow
@pytest.mark.parametrize("error", [KeyError, ValueError, NotFoundError], ids=lambda error: error.__name__)
def test_what_a_receiver_raises_is_logged_and_ends_nothing(
    desk: Desk, error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    """One message that went wrong must not cut a worker off for good."""

    def stumble(update: ClientUpdate) -> None:
        if update.report_seq == 1:
            raise error("stumbled")
        caller.heard.append(update)

    caplog.set_level(logging.ERROR, "dsnb.wire.control_stream")
    with serving(desk.handlers) as server, calling(address(server)) as caller:
        caller.on_message = stumble
        caller.stream.wait_connected(10)
        desk.sending.put(ClientUpdate(report_seq=1))
        desk.sending.put(ClientUpdate(report_seq=2))
        wait_for(lambda: caller.heard[-1:] == [ClientUpdate(report_seq=2)], what="the next message")
        assert desk.calls == 1, "over the same connection"
    assert "stumbled" in caplog.text


def test_a_stream_that_was_never_started_gives_its_connection_back_too() -> None:
    with port_of_nobody() as port:
        stream = Caller(f"127.0.0.1:{port}").stream
        assert len(open_channels()) == 1
        stream.close()
        stream.close()
    assert open_channels() == []
