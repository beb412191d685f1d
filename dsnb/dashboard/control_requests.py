"""The requests that a page can send to the service: each has a deadline, and all pages show its outcome.

Theory of operation. A request is plain data: an action and its subject. `submit` starts a thread that makes one call
with a deadline, and returns immediately: a page must never wait for a service. While a request is pending, an equal
request, from any tab, is not sent again. The outcome (the state that the service confirmed, or the error) is kept for
some seconds so that every page can show it. The actions are those of `monitor.controls` and are idempotent at the
service: draining a worker that already drains changes nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

import msgspec

from dsnb.errors import DsnbError
from dsnb.monitor.controls import Controls, describe_caller
from dsnb.monitor.formatting import as_sentence, format_duration
from dsnb.monitor.peek import PeekedJob
from dsnb.monitor.snapshot import Snapshot

DEADLINE_S = 5.0
OUTCOME_SHOWN_S = 10.0
"""How long pages show the outcome of a request, in seconds."""

_MOST_WORKERS = 1_000

MAX_OUTCOMES = 4
"""The maximum number of kept outcomes, and of pending requests."""

Subject = tuple[tuple[str, str], ...]
AddressLookup = Callable[[], tuple[str, str | None]]
"""Returns the service's target and token (None: look it up by address); raises `DsnbError` if it is not found."""


class Request(msgspec.Struct, frozen=True):
    """A request: an action of `ACTIONS`, and its subject, as in `(("job", "train"),)`."""

    action: str
    subject: Subject = ()

    @property
    def names(self) -> Mapping[str, str]:
        """The names in the subject, by kind."""
        return dict(self.subject)


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of request.

    Attributes:
        call: Sends the request, and returns the state that the service confirms, or what was asked for.
        pending_text: The notice while the request is pending; `{job}` and so on stand for the names in the subject.
        done_text: The notice once the service has confirmed; `{word}` stands for the confirmed state.
        needs_confirmation: Whether the action is destructive, so that its button must be pressed twice.
        private: Whether the outcome concerns only the page that asked, which shows it itself; then it is no notice.
    """

    call: Callable[[Controls, Mapping[str, str]], str | PeekedJob]
    pending_text: str
    done_text: str
    needs_confirmation: bool = False
    private: bool = False


ACTIONS: Mapping[str, Action] = {
    "pause": Action(
        call=lambda c, n: c.pause(n["job"]), pending_text="pausing {job}", done_text="the job {job} is {word}"
    ),
    "resume": Action(
        call=lambda c, n: c.resume(n["job"]), pending_text="resuming {job}", done_text="the job {job} is {word}"
    ),
    "cancel": Action(
        call=lambda c, n: c.cancel(n["job"]),
        pending_text="cancelling {job}",
        done_text="the job {job} is {word}",
        needs_confirmation=True,
    ),
    "evict": Action(
        call=lambda c, n: c.evict(n["job"], n["trainer"]),
        pending_text="evicting {trainer} from {job}",
        done_text="the trainer {trainer} of {job} is {word}, and nothing is kept for it",
        needs_confirmation=True,
    ),
    "drain": Action(
        call=lambda c, n: c.drain(n["worker"]),
        pending_text="draining {worker}",
        done_text="the worker {worker} is {word}",
    ),
    "remove": Action(
        call=lambda c, n: c.remove(n["worker"]),
        pending_text="removing {worker}",
        done_text="the worker {worker} is {word}",
        needs_confirmation=True,
    ),
    "scale": Action(
        call=lambda c, n: c.scale(int(n["workers"])),
        pending_text="scaling to {workers} workers",
        done_text="there are {word}",
    ),
    "autoscale": Action(
        call=lambda c, n: c.autoscale(1, int(n["maximum"])),
        pending_text="switching autoscaling on",
        done_text="autoscaling is on, from 1 to {maximum} workers",
    ),
    "fix": Action(
        call=lambda c, _n: c.autoscale(0, 0),
        pending_text="switching autoscaling off",
        done_text="autoscaling is off",
    ),
    "peek": Action(
        call=lambda c, n: c.peek(n["job"]),
        pending_text="peeking at {job}",
        done_text="peeked at {job}",
        private=True,
    ),
}


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a request that is pending or has ended.

    Attributes:
        request: The request.
        state: "pending", "done" or "failed".
        text: The notice to show.
        changed_at: When the request started or ended, by the monotonic clock.
        peeked: The elements that a peek found; None for other requests.
    """

    request: Request
    state: str
    text: str
    changed_at: float
    peeked: PeekedJob | None = None


class RequestRunner:
    """Sends pages' requests to the service; equal requests are sent once, however often the button is pressed.

    Args:
        look_up_address: Finds the service; called for each request, so that a service that moved is found.

    Example:
        >>> requests = RequestRunner(lambda: ("grpc://127.0.0.1:5050", "token"))
        >>> requests.submit(Request("evict", (("job", "train"), ("trainer", "a"))))
        >>> requests.outcomes()
    """

    def __init__(self, look_up_address: AddressLookup) -> None:
        self._look_up_address = look_up_address
        self._lock = threading.Lock()
        self._outcomes: dict[Request, Outcome] = {}
        self._threads: dict[Request, threading.Thread] = {}

    def submit(self, request: Request) -> bool:
        """Start a request. Return False if it is pending already, its action is unknown, or too many are pending."""
        action = ACTIONS.get(request.action)
        with self._lock:
            if action is None or request in self._threads or len(self._threads) >= MAX_OUTCOMES:
                return False
            self._record_outcome(request, "pending", _format_text(action.pending_text, request))
            thread = threading.Thread(
                target=self._run, args=(request, action), name="dsnb-dashboard-control", daemon=True
            )
            self._threads[request] = thread
            thread.start()
        return True

    def outcomes(self) -> tuple[Outcome, ...]:
        """The pending requests and the outcomes of the last seconds, the newest last."""
        now = time.monotonic()
        with self._lock:
            return tuple(
                o for o in self._outcomes.values() if o.state == "pending" or now - o.changed_at < OUTCOME_SHOWN_S
            )

    def outcome_of(self, request: Request) -> Outcome | None:
        """The state of one request; None if it was never sent, or so long ago that its outcome is not kept."""
        with self._lock:
            return self._outcomes.get(request)

    def stop(self) -> None:
        """Wait for pending requests; their deadline bounds the wait."""
        with self._lock:
            threads = list(self._threads.values())
        for thread in threads:
            thread.join(DEADLINE_S + 1)

    def _run(self, request: Request, action: Action) -> None:
        began = time.monotonic()
        peeked: PeekedJob | None = None
        try:
            answer = self._call(request, action)
            peeked, state_now = (answer, "") if isinstance(answer, PeekedJob) else (None, answer)
            took = format_duration(time.monotonic() - began)
            state, text = (
                "done",
                f"{_format_text(action.done_text, request, state_now)}, confirmed by the service in {took}",
            )
        except DsnbError as error:
            state, text = "failed", " ".join(as_sentence(part) for part in (error.what, error.hint) if part)
        except Exception as error:  # noqa: BLE001 - show any error to the user who pressed the button
            state, text = "failed", as_sentence(f"{type(error).__name__}: {error}")
        with self._lock:
            self._threads.pop(request, None)
            self._record_outcome(request, state, text, peeked)

    def _call(self, request: Request, action: Action) -> str | PeekedJob:
        target, token = self._look_up_address()
        controls = Controls(target, token, requested_by=describe_caller("the dashboard"), timeout=DEADLINE_S)
        return action.call(controls, request.names)

    def _record_outcome(self, request: Request, state: str, text: str, peeked: PeekedJob | None = None) -> None:
        self._outcomes.pop(request, None)  # re-insert, so that the dict stays ordered by time
        self._outcomes[request] = Outcome(
            request=request, state=state, text=text, changed_at=time.monotonic(), peeked=peeked
        )
        ended = [known for known, outcome in self._outcomes.items() if outcome.state != "pending"]
        for known in ended[:-MAX_OUTCOMES]:
            del self._outcomes[known]


def _format_text(text: str, request: Request, state: str = "") -> str:
    return text.format_map({**request.names, "word": state})


def subject_exists(snapshot: Snapshot | None, request: Request) -> bool:
    """Whether the subject of a request exists. Requests come from a browser and are not trusted."""
    if snapshot is None:
        return False
    names = request.names
    job = snapshot.job(names["job"]) if "job" in names else None
    if "job" in names and job is None:
        return False
    if "trainer" in names and (job is None or job.trainer(names["trainer"]) is None):
        return False
    counts = [names[kind] for kind in ("workers", "maximum") if kind in names]
    if not all(count.isdecimal() and len(count) <= 4 and int(count) <= _MOST_WORKERS for count in counts):
        return False
    if names.get("maximum") == "0":
        return False
    if request.action in ("scale", "autoscale", "fix") and not snapshot.scalable:
        return False
    return "worker" not in names or any(worker.name == names["worker"] for worker in snapshot.workers)
