"""What a page may ask of the service: each request once at a time, with a deadline, and its outcome for all to see.

Theory of operation. A request is plain data (a verb and whom it concerns). `ask` hands it to a thread that makes one
call with a deadline, and returns at once: a page must never wait for a service. While it is under way the same request,
from whichever tab, is the same request. Its outcome (what the service confirmed, or its error) is kept for some seconds
so that every page can show it. The verbs themselves are those of `monitor.controls`, idempotent at the service: to
drain a worker that drains changes nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from dsnb.dataclass import dataclass
from dsnb.errors import DsnbError
from dsnb.monitor.controls import Controls, this_process
from dsnb.monitor.snapshot import Snapshot
from dsnb.monitor.words import duration, sentence

DEADLINE_S = 5.0
KEEP_S = 10.0
"""How long the outcome of a request stands on the pages."""

MOST = 4
"""Outcomes that are kept, and requests that may be under way at once."""

Target = tuple[tuple[str, str], ...]
Reach = Callable[[], tuple[str, str | None]]
"""Gives the target and the token of the service, None to have it looked up; raises `DsnbError` if it is not found."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked: a verb of `VERBS`, and whom it concerns, as in `(("job", "train"),)`."""

    verb: str
    target: Target = ()

    @property
    def names(self) -> Mapping[str, str]:
        """Whom it concerns, by kind."""
        return dict(self.target)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """One thing that can be asked.

    Attributes:
        call: Has it done, and gives the service's word for what is so now.
        doing: What is said meanwhile; `{job}` and the like stand for the names of the target.
        done: What is said when the service has confirmed it.
        grave: Whether it cannot be taken back, so that it is asked for twice.
    """

    call: Callable[[Controls, Mapping[str, str]], str]
    doing: str
    done: str
    grave: bool = False


VERBS: Mapping[str, Verb] = {
    "pause": Verb(call=lambda c, n: c.pause(n["job"]), doing="pausing {job}", done="the job {job} is {word}"),
    "resume": Verb(call=lambda c, n: c.resume(n["job"]), doing="resuming {job}", done="the job {job} is {word}"),
    "cancel": Verb(
        call=lambda c, n: c.cancel(n["job"]), doing="cancelling {job}", done="the job {job} is {word}", grave=True
    ),
    "send_away": Verb(
        call=lambda c, n: c.send_away(n["job"], n["trainer"]),
        doing="sending {trainer} away from {job}",
        done="the trainer {trainer} is {word} from {job}, and nothing is kept for it",
        grave=True,
    ),
    "drain": Verb(
        call=lambda c, n: c.drain(n["worker"]), doing="draining {worker}", done="the worker {worker} is {word}"
    ),
    "remove": Verb(
        call=lambda c, n: c.remove(n["worker"]),
        doing="removing {worker}",
        done="the worker {worker} is {word}",
        grave=True,
    ),
    "scale": Verb(
        call=lambda c, n: c.scale(int(n["workers"])), doing="scaling to {workers} workers", done="there are {word}"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a request ended, or that it has not yet.

    Attributes:
        state: "pending", "done" or "failed".
        at: When it began or ended, by the monotonic clock.
    """

    request: Request
    state: str
    text: str
    at: float


class Requests:
    """Asks the service for what pages want, one call for each request however often it is clicked.

    Args:
        reach: Where the service is; asked for each request, so one that came back elsewhere is found.

    Example:
        >>> requests = Requests(lambda: ("grpc://127.0.0.1:5050", "token"))
        >>> requests.ask(Request("send_away", (("job", "train"), ("trainer", "a"))))
        >>> requests.outcomes()
    """

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._lock = threading.Lock()
        self._outcomes: dict[Request, Outcome] = {}
        self._threads: dict[Request, threading.Thread] = {}

    def ask(self, request: Request) -> bool:
        """Begin with a request; False if it is under way already, is unknown, or too many others are."""
        verb = VERBS.get(request.verb)
        with self._lock:
            if verb is None or request in self._threads or len(self._threads) >= MOST:
                return False
            self._note(request, "pending", _fill(verb.doing, request))
            thread = threading.Thread(target=self._do, args=(request, verb), name="dsnb-dashboard-control", daemon=True)
            self._threads[request] = thread
            thread.start()
        return True

    def outcomes(self) -> tuple[Outcome, ...]:
        """What is under way, and what ended in the last seconds; the newest last."""
        now = time.monotonic()
        with self._lock:
            return tuple(o for o in self._outcomes.values() if o.state == "pending" or now - o.at < KEEP_S)

    def stop(self) -> None:
        """Wait for what is under way, which its deadline bounds."""
        with self._lock:
            threads = list(self._threads.values())
        for thread in threads:
            thread.join(DEADLINE_S + 1)

    def _do(self, request: Request, verb: Verb) -> None:
        began = time.monotonic()
        try:
            word = self._call(request, verb)
            took = duration(time.monotonic() - began)
            state, text = "done", f"{_fill(verb.done, request, word)}, confirmed by the service in {took}"
        except DsnbError as error:
            state, text = "failed", " ".join(sentence(part) for part in (error.what, error.hint) if part)
        except Exception as error:  # noqa: BLE001 - whatever it is, the person who clicked must hear of it
            state, text = "failed", sentence(f"{type(error).__name__}: {error}")
        with self._lock:
            self._threads.pop(request, None)
            self._note(request, state, text)

    def _call(self, request: Request, verb: Verb) -> str:
        target, token = self._reach()
        controls = Controls(target, token, by=this_process("the dashboard"), timeout=DEADLINE_S)
        return verb.call(controls, request.names)

    def _note(self, request: Request, state: str, text: str) -> None:
        self._outcomes.pop(request, None)  # so that it comes last
        self._outcomes[request] = Outcome(request=request, state=state, text=text, at=time.monotonic())
        ended = [known for known, outcome in self._outcomes.items() if outcome.state != "pending"]
        for known in ended[:-MOST]:
            del self._outcomes[known]


def _fill(text: str, request: Request, word: str = "") -> str:
    return text.format_map({**request.names, "word": word})


def exists(snapshot: Snapshot | None, request: Request) -> bool:
    """Whether what a request concerns is there: a page's words are not trusted."""
    if snapshot is None:
        return False
    names = request.names
    job = snapshot.job(names["job"]) if "job" in names else None
    if "job" in names and job is None:
        return False
    if "trainer" in names and (job is None or job.trainer(names["trainer"]) is None):
        return False
    if "workers" in names and not (snapshot.scalable and names["workers"].isdecimal()):
        return False
    return "worker" not in names or any(worker.name == names["worker"] for worker in snapshot.workers)
