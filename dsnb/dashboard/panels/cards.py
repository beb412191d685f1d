"""Four summary cards: what sharing saves, the throughput, who loses data, who waits."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dsnb.dashboard.markup import Html, join, number, tag
from dsnb.dashboard.view import View
from dsnb.monitor.formatting import BAD_WAIT_SHARE, format_bytes, format_count, format_share, plural, wait_level
from dsnb.monitor.rates import demand_text, trainer_rates
from dsnb.monitor.readers import has_name, reader_label
from dsnb.monitor.snapshot import JobStatus, TrainerStatus
from dsnb.monitor.tables import has_lost_elements

MEANINGS = {
    "sharing": "An element is what the pipeline yields, often a batch. Elements that several trainers consume are "
    "produced once.",
    "throughput": "Elements per second over the last seconds. What the fastest trainer could consume is its rate if it "
    "never waited.",
    "losing": "A trainer skips elements that leave the cache window before it has read them.",
    "waiting": "The share of a trainer's time that its next() waits for an element, over the last ten seconds.",
}
"""What each card means, as tooltips."""


class AnswerCard(msgspec.Struct, frozen=True, kw_only=True):
    """One question and its answer.

    Attributes:
        name: The name under which tests and scripts find the card.
        question: The card's title.
        level: "plain", "good", "warn" or "bad".
        answer: The answer.
        detail: The numbers behind the answer.
    """

    name: str
    question: str
    level: str
    answer: Html
    detail: Html


def cards(view: View) -> Html:
    """The row of cards; without a service or a job, what to do next."""
    if view.sample is None:
        return _no_service(view)
    if view.job is None:
        return _no_job()
    return join(*(_draw(card) for card in answer_cards(view, view.job)))


def answer_cards(view: View, job: JobStatus) -> Sequence[AnswerCard]:
    """Build the four cards of one job."""
    return (_sharing_card(job), _throughput_card(view, job), _loss_status_card(view, job), _waiting_card(view, job))


def _draw(card: AnswerCard) -> Html:
    return tag(
        "article",
        tag("h3", card.question, title=MEANINGS[card.name]),
        tag("p", card.answer, class_="big"),
        tag("p", card.detail, class_="small"),
        class_=f"card {card.level}",
        data_card=card.name,
        data_level=card.level,
    )


def _sharing_card(job: JobStatus) -> AnswerCard:
    produced, used = job.produced, job.consumed
    if produced and used > produced:
        small = join(
            f"each used {used / produced:.1f} times: ",
            tag("b", format_share(1 - produced / used)),
            " of the work saved",
        )
    else:
        small = join(f"{format_count(produced - used)} produced and not consumed yet")
    once = tag("small", "produced once" if used > produced else "produced")
    big = tag(
        "span",
        tag("span", number(format_count(produced), "produced", produced), once),
        tag("span", number(format_count(used), "consumed", used), tag("small", "consumed")),
        class_="pair",
    )
    return AnswerCard(name="sharing", question="Elements", level="plain", answer=big, detail=small)


def _throughput_card(view: View, job: JobStatus) -> AnswerCard:
    rates = view.job_rates
    demand = (
        f" · the fastest trainer could consume {demand_text(rates.fastest_trainer)}" if rates.fastest_trainer else ""
    )
    big = join(
        number(view.format_rate(rates.produced), "rate", round(rates.produced, 1)),
        tag("span", " produced", class_="unit"),
    )
    level = (
        "warn" if rates.demand is not None and _is_below_demand(rates.produced, rates.demand, view, job) else "plain"
    )
    small = join(f"{view.format_rate(rates.consumed)} consumed{demand}", _bytes_text(view, job))
    return AnswerCard(name="throughput", question="Throughput", level=level, answer=big, detail=small)


def _bytes_text(view: View, job: JobStatus) -> Html | None:
    """Bytes produced per second, from the mean size of the elements in memory; None if that is unknown."""
    elements = sum(task.head - task.tail for task in job.tasks if task.window_bytes)
    if not elements or not view.measured:
        return None
    size = sum(task.window_bytes for task in job.tasks) / elements
    rate = size * view.job_rates.produced
    text = f"{format_bytes(rate)}/s"
    return join(" · ", number(text, "byte_rate", round(rate)), f" produced, {format_bytes(size)} each")


def _is_below_demand(produced: float, demand: float, view: View, job: JobStatus) -> bool:
    waits = _worst_wait(view, job)
    return produced < 0.9 * demand and waits is not None and waits[1] > BAD_WAIT_SHARE


def _loss_status_card(view: View, job: JobStatus) -> AnswerCard:
    skipped = sum(trainer.skipped for trainer in job.trainers)
    losing = [t.trainer_id for t in job.trainers if trainer_rates(view.job_rates, t.trainer_id).skipped > 0]
    lost = plural(job.lost_splits, "split") if job.lost_splits else "elements" if has_lost_elements(job) else ""
    dead = f" · {lost} lost with a worker" if lost else ""
    small = join(number(format_count(skipped), "skipped", skipped), f" skipped in all{dead}")
    if losing:
        return _loss_card("bad", ", ".join(losing), small)
    if skipped or lost:
        return _loss_card("warn", "no trainer now", small)
    return _loss_card("good", "no trainer", join("every trainer gets every element"))


def _loss_card(level: str, names: str, small: Html) -> AnswerCard:
    big = tag("span", names, data_field="loses", title=names, class_="names")
    return AnswerCard(name="losing", question="Who loses data?", level=level, answer=big, detail=small)


def _waiting_card(view: View, job: JobStatus) -> AnswerCard:
    worst = _worst_wait(view, job)
    if worst is None:
        big, small = tag("span", "–"), join("no trainer reads now")
        return AnswerCard(name="waiting", question="Who waits for data?", level="plain", answer=big, detail=small)
    trainer, wait = worst
    verdict = {"good": "not input-bound", "warn": "slightly input-bound", "bad": "input-bound"}
    big = join(number(format_share(wait), "worst-wait", round(wait, 3)), tag("span", " of its time", class_="unit"))
    name = trainer.trainer_id if has_name(job) else reader_label(job, trainer)
    small = join(tag("b", name), f" waits most: {verdict[wait_level(wait)]}")
    return AnswerCard(name="waiting", question="Who waits for data?", level=wait_level(wait), answer=big, detail=small)


def _worst_wait(view: View, job: JobStatus) -> tuple[TrainerStatus, float] | None:
    known = [(t, trainer_rates(view.verdict_rates, t.trainer_id).wait_share) for t in job.trainers]
    return max(((t, wait) for t, wait in known if wait is not None), key=lambda pair: pair[1], default=None)


def _no_service(view: View) -> Html:
    if not view.health.error:
        return _empty_state_card("no-service", "Looking for the service …", ("It has not answered yet.",))
    words = ("Start one in a cell; this page finds it by itself.", view.health.error)
    return _empty_state_card("no-service", "No service yet", words, "svc = dsnb.start(workers=2)")


def _no_job() -> Html:
    code = 'ds = ds.apply(dsnb.distribute("parallel_epochs", svc, job_name="train"))\nfor batch in ds: ...'
    return _empty_state_card("no-job", "No job yet", ("Apply dsnb.distribute to a Dataset and iterate it.",), code)


def _empty_state_card(name: str, title: str, words: Sequence[str], code: str = "") -> Html:
    lines = (tag("p", text, class_="small") for text in words if text)
    return tag(
        "article", tag("h3", title), *lines, tag("pre", code) if code else None, class_="card hello", data_card=name
    )
