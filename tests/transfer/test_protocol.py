from __future__ import annotations

import pytest

from dsnb.code.failures import failure_of
from dsnb.elements.frame import Frame
from dsnb.transfer.protocol import FrameSlice


def test_the_error_of_a_frame_is_raised_for_each_reader_anew() -> None:
    frame_slice = FrameSlice(Frame.of_failure(failure_of(ValueError("bad row"))), 0, 0, 1, 1)
    with pytest.raises(ValueError, match="bad row") as first:
        frame_slice.elements()
    with pytest.raises(ValueError, match="bad row") as second:
        frame_slice.elements()
    assert first.value is not second.value
