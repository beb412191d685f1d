"""The events of a service say once that a trainer joined, and once that it left."""

from __future__ import annotations

from dsnb.dispatcher.trainer_presence import LEFT_AFTER_S, TrainerPresence

JOBS = {"train"}
A = ("train", "a")


def test_only_the_first_client_of_a_trainer_is_its_joining() -> None:
    presence = TrainerPresence()
    assert [presence.joined(*A), presence.joined(*A), presence.joined("train", "b")] == [True, False, True]


def test_a_trainer_without_a_client_has_left_after_a_while_and_once() -> None:
    presence = TrainerPresence()
    presence.joined(*A)
    assert presence.update(JOBS, {A}, now=10.0) == []
    assert presence.update(JOBS, set(), now=20.0) == []
    assert presence.update(JOBS, set(), now=20.0 + LEFT_AFTER_S - 0.1) == []
    assert presence.update(JOBS, set(), now=20.0 + LEFT_AFTER_S) == [A]
    assert presence.update(JOBS, set(), now=30.0) == []


def test_a_trainer_between_two_epochs_has_not_left() -> None:
    presence = TrainerPresence()
    presence.joined(*A)
    presence.update(JOBS, set(), now=0.0)
    assert not presence.joined(*A), "the next epoch's client is no news"
    assert presence.update(JOBS, {A}, now=LEFT_AFTER_S) == []
    assert presence.update(JOBS, set(), now=LEFT_AFTER_S + 1) == [], "its absence begins anew"


def test_a_trainer_that_left_and_returns_joins_again() -> None:
    presence = TrainerPresence()
    presence.joined(*A)
    presence.update(JOBS, set(), now=0.0)
    presence.update(JOBS, set(), now=LEFT_AFTER_S)
    assert presence.joined(*A)


def test_trainers_of_a_forgotten_job_are_not_announced() -> None:
    presence = TrainerPresence()
    presence.joined(*A)
    assert presence.update(set(), set(), now=99.0) == []
    assert presence.joined(*A), "the job of that name is another one now"
