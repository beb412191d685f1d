"""Coordinated reads on the page."""

from __future__ import annotations

import re

from dsnb.dashboard.panels.rounds import rounds
from dsnb.monitor.snapshot import ConsumerStatus, RoundsStatus
from tests.dashboard.snapshots import job, seen, snapshot


def shown(found: RoundsStatus | None) -> str:
    return rounds(seen(snapshot(jobs=(job(rounds=found),))))


def test_who_is_waited_for_is_named() -> None:
    slow = ConsumerStatus(index=1, client_id="c1", state="reading", round=7, last_change_age_s=4.0)
    quick = ConsumerStatus(index=0, client_id="c0", state="reading", round=8, last_change_age_s=3.9)
    made = shown(RoundsStatus(round=7, consumers=(slow, quick), dropped=2, waits_for="consumer 1"))
    assert 'data-field="round" data-value="7"' in made
    assert "waits for consumer 1" in made
    assert "2 rounds dropped" in re.sub("<[^>]*>", "", made)
    assert re.findall(r'data-consumer="(\d)"', made) == ["0", "1"]
    assert re.findall(r'<td class="num( warn)?" data-field="round" data-value="(\d)"', made) == [
        ("", "8"),
        (" warn", "7"),
    ]


def test_other_jobs_have_no_such_panel() -> None:
    assert shown(None) == ""
    assert rounds(seen()) == ""
