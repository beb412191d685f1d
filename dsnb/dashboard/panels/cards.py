"""Four answers at a glance: what sharing saves, how fast it goes, who loses data, who waits."""

from __future__ import annotations

from collections.abc import Sequence

from dsnb.dashboard.markup import Html, join, number, tag
from dsnb.dashboard.view import View
from dsnb.dataclass import dataclass
from dsnb.monitor.rates import demand_words, trainer_rates
from dsnb.monitor.snapshot import JobStatus, TrainerStatus
from dsnb.monitor.words import WAITS_MUCH, count, level_of, plural, share


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One question and its answer.

    Attributes:
        level: "plain", "good", "warn" or "bad".
        big: The answer.
        small: What it rests on.
    """

    name: str
    question: str
    level: str
    big: Html
    small: Html


def cards(view: View) -> Html:
    """The row of cards; what to do where there is no job yet."""
    if view.moment is None:
        return _no_service(view)
    if view.job is None:
        return _no_job()
    return join(*(_card(card) for card in answers(view, view.job)))


def answers(view: View, job: JobStatus) -> Sequence[Card]:
    """The four cards of one job."""
    return (_sharing(job), _throughput(view, job), _losing(view, job), _waiting(view, job))


def _card(card: Card) -> Html:
    return tag(
        "article",
        tag("h3", card.question),
        tag("p", card.big, class_="big"),
        tag("p", card.small, class_="small"),
        class_=f"card {card.level}",
        data_card=card.name,
        data_level=card.level,
    )


def _sharing(job: JobStatus) -> Card:
    produced, used = job.produced, job.consumed
    if produced and used > produced:
        small = join(
            f"each used {used / produced:.1f} times: ", tag("b", share(1 - produced / used)), " of the work saved"
        )
    else:
        small = join(f"{count(produced - used)} produced ahead of the readers")
    once = tag("small", "produced once" if used > produced else "produced")
    big = tag(
        "span",
        tag("span", number(count(produced), "produced", produced), once),
        tag("span", number(count(used), "consumed", used), tag("small", "consumed")),
        class_="pair",
    )
    return Card(name="sharing", question="Elements", level="plain", big=big, small=small)


def _throughput(view: View, job: JobStatus) -> Card:
    rates = view.job_rates
    demand = f" · the fastest trainer could take {demand_words(rates.fastest)}" if rates.fastest else ""
    big = join(
        number(view.per_s(rates.produced), "rate", round(rates.produced, 1)), tag("span", " produced", class_="unit")
    )
    level = "warn" if rates.demand is not None and _is_short(rates.produced, rates.demand, view, job) else "plain"
    small = join(f"{view.per_s(rates.consumed)} consumed{demand}")
    return Card(name="throughput", question="Throughput", level=level, big=big, small=small)


def _is_short(produced: float, demand: float, view: View, job: JobStatus) -> bool:
    waits = _worst_wait(view, job)
    return produced < 0.9 * demand and waits is not None and waits[1] > WAITS_MUCH


def _losing(view: View, job: JobStatus) -> Card:
    skipped = sum(trainer.skipped for trainer in job.trainers)
    losing = [t.trainer_id for t in job.trainers if trainer_rates(view.job_rates, t.trainer_id).skipped > 0]
    dead = f" · {plural(job.lost_splits, 'split')} lost with a worker" if job.lost_splits else ""
    small = join(number(count(skipped), "skipped", skipped), f" skipped in all{dead}")
    if losing:
        return _loss_card("bad", ", ".join(losing), small)
    if skipped or job.lost_splits:
        return _loss_card("warn", "nobody now", small)
    return _loss_card("good", "nobody", join("every trainer gets every element"))


def _loss_card(level: str, who: str, small: Html) -> Card:
    big = tag("span", who, data_field="loses", title=who, class_="names")
    return Card(name="losing", question="Who loses data?", level=level, big=big, small=small)


def _waiting(view: View, job: JobStatus) -> Card:
    worst = _worst_wait(view, job)
    if worst is None:
        big, small = tag("span", "–"), join("nobody reads now")
        return Card(name="waiting", question="Who waits for data?", level="plain", big=big, small=small)
    trainer, wait = worst
    verdict = {"good": "training is not held up", "warn": "borderline", "bad": "training is held up by its input"}
    big = join(number(share(wait), "worst-wait", round(wait, 3)), tag("span", " of its time", class_="unit"))
    small = join(tag("b", trainer.trainer_id), f" waits most: {verdict[level_of(wait)]}")
    return Card(name="waiting", question="Who waits for data?", level=level_of(wait), big=big, small=small)


def _worst_wait(view: View, job: JobStatus) -> tuple[TrainerStatus, float] | None:
    known = [(t, trainer_rates(view.job_rates, t.trainer_id).wait_share) for t in job.trainers]
    return max(((t, wait) for t, wait in known if wait is not None), key=lambda pair: pair[1], default=None)


def _no_service(view: View) -> Html:
    if not view.health.trouble:
        return _hello("no-service", "Looking for the service …", ("It has not answered yet.",))
    words = ("Start one in a cell; this page finds it by itself.", view.health.trouble)
    return _hello("no-service", "No service yet", words, "svc = dsnb.start(workers=2)")


def _no_job() -> Html:
    code = 'ds = ds.apply(dsnb.distribute("parallel_epochs", svc, job_name="train"))\nfor batch in ds: ...'
    return _hello("no-job", "No job yet", ("Apply dsnb.distribute to a Dataset and iterate it.",), code)


def _hello(name: str, title: str, words: Sequence[str], code: str = "") -> Html:
    lines = (tag("p", text, class_="small") for text in words if text)
    return tag(
        "article", tag("h3", title), *lines, tag("pre", code) if code else None, class_="card hello", data_card=name
    )
