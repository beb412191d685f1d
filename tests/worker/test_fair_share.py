from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dsnb.worker.server import fair_share


@given(total=st.integers(0, 10_000), wants=st.lists(st.none() | st.integers(0, 5000), max_size=12))
def test_no_byte_is_given_twice_and_none_is_kept_back_from_who_wants_it(total: int, wants: list[int | None]) -> None:
    shares = fair_share(total, wants)
    assert len(shares) == len(wants)
    assert all(nbytes >= 1 for nbytes in shares)
    assert sum(shares) <= max(total, len(wants)) + sum(want == 0 for want in wants)
    hungry = [nbytes for nbytes, want in zip(shares, wants, strict=True) if want is None]
    if hungry:
        assert max(hungry) - min(hungry) <= 1
        assert sum(shares) >= total - len(wants)
        sated = zip(shares, wants, strict=True)
        assert all(nbytes == max(1, want) for nbytes, want in sated if want is not None and want < min(hungry))


def test_what_one_task_does_not_need_is_for_the_others() -> None:
    assert fair_share(100, [None, None]) == [50, 50]
    assert fair_share(100, [None, 0]) == [99, 1]
    assert fair_share(100, [None, 10, None, 80]) == [30, 10, 30, 30]
    assert fair_share(0, [None]) == [1]
    assert fair_share(100, []) == []
