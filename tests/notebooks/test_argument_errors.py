"""What a cell shows for a wrong argument: the user's line and a page, and nothing of dsnb's insides."""

from __future__ import annotations

import pytest

from tests.support.kernel import Kernel

WRONG = {
    "a value": ("dsnb.Dataset.range(3).batch(0)", "`batch_size` is 0"),
    "a name": ("dsnb.Dataset.range(3).batch(2, drop_remaindr=True)", "did you mean 'drop_remainder'?"),
    "a function": ("dsnb.Dataset.range(3).map(lambda a, b: a)", "`map_func` takes (a, b)"),
    "a configuration": ("dsnb.DispatcherConfig(worker_timeout_ms=float('nan'))", "`worker_timeout_ms` is nan"),
    "a service": ("dsnb.start(isolation='proces')", "did you mean 'process'?"),
    "reading": ("dsnb.distribute('paralel_epochs', 'localhost:5050')", "did you mean 'parallel_epochs'?"),
    "what NumPy cannot read": ("dsnb.Dataset.from_tensors(object())", "`tensors` holds a value of type object"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_shows_the_cell_and_a_page_of_a_few_lines(kernel: Kernel, name: str) -> None:
    code, told = WRONG[name]
    cell = kernel.begin(f"x = 1\n{code}\ny = 2").wait()
    assert told in cell.traceback
    assert f"----> 2 {code}" in cell.traceback
    assert "/dsnb/" not in cell.traceback
    assert len(cell.traceback.splitlines()) <= 12
