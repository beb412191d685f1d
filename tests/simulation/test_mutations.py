"""The simulator notices mutations of the protocol: each is applied in a child process, which must fail."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.simulation.mutations import MUTATIONS


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_of_the_protocol_is_noticed_within_a_minute(name: str) -> None:
    command = [sys.executable, "-m", "tests.simulation.mutations", name, "60", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.startswith(f"{name}: seed "), done.stdout + done.stderr
