"""An element that is being copied to a device is delivered or given back, whatever happens to the copy."""

from __future__ import annotations

from typing import Any

import pytest

from dsnb.frameworks.placement import DevicePlacement
from dsnb.pipeline.engine.to_device import ToDeviceStage
from tests.pipeline.engine.test_stage import Source


class Copy:
    """Copies a leaf; the first call is interrupted."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, leaf: Any) -> Any:
        self.calls += 1
        if self.calls == 1:
            raise KeyboardInterrupt
        return leaf


def interrupted_copy() -> tuple[ToDeviceStage, Source]:
    source = Source([1], [2])
    stage = ToDeviceStage(DevicePlacement(Copy(), ahead=0), source, writable=False)
    with pytest.raises(KeyboardInterrupt):
        stage.pull(1)
    return stage, source


def test_an_element_whose_copy_was_interrupted_is_copied_again() -> None:
    stage, _ = interrupted_copy()
    assert [int(element) for pull in range(2) for element in stage.pull(1)] == [1, 2]
    stage.close()


def test_an_element_whose_copy_was_interrupted_counts_as_unread() -> None:
    stage, source = interrupted_copy()
    stage.close()
    assert source.released == [1]
