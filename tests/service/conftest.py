"""Services under test wait for reports as much longer as a machine of CI may be slower."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def patient_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """A status of a service of this process has the counters of now, and not of its clients' last reports."""
    monkeypatch.setattr("dsnb.dispatcher.service._REPORT_TIMEOUT_S", 2.0)
