"""A bar for a reading loop, where somebody asks for one."""

from __future__ import annotations

import io
import sys

import pytest

import dsnb
from dsnb.errors import FailedPreconditionError


def test_a_bar_tells_how_far_a_dataset_of_known_length_is() -> None:
    text = io.StringIO()
    assert [int(x) for x in dsnb.progress(dsnb.Dataset.range(40), file=text, desc="epoch 0")] == list(range(40))
    assert "epoch 0: 100%" in text.getvalue()
    assert "40/40" in text.getvalue()
    assert " elements/s" in text.getvalue()


def test_a_bar_counts_what_comes_from_a_service_though_its_length_is_not_known() -> None:
    text = io.StringIO()
    with dsnb.start(workers=1, name="bars") as service:
        read = dsnb.distribute("distributed_epoch", service, job_name="train")  # shared, so each reader gets some of it
        data = dsnb.Dataset.range(40).apply(read)
        assert len(list(dsnb.progress(data, file=text, unit="batch"))) == 40
    assert "40batch" in text.getvalue()


def test_without_tqdm_it_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with pytest.raises(FailedPreconditionError, match=r"needs tqdm") as told:
        dsnb.progress(dsnb.Dataset.range(3))
    assert "pip install 'dsnb[notebook]'" in str(told.value)
