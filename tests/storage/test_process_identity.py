from __future__ import annotations

import os
import subprocess
import sys

import pytest

from dsnb.storage.process_identity import is_gone, this_process


def test_this_process_is_not_gone() -> None:
    assert is_gone(this_process().unique_id()) is False


def test_a_process_that_ended_is_gone() -> None:
    code = "from dsnb.storage.process_identity import this_process; print(this_process().unique_id())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert is_gone(done.stdout.strip()) is True


def test_a_process_id_that_was_used_again_is_another_process() -> None:
    place, pid, _ = this_process().unique_id().split("-")
    assert is_gone(f"{place}-{pid}-1") is True


@pytest.mark.parametrize(
    "short",
    ["0123456789ab-1-55", "", "-", "x-y", f"{this_process().pid_namespace}-me-1", f"{this_process().pid_namespace}-1"],
)
def test_of_a_process_elsewhere_nothing_can_be_told(short: str) -> None:
    assert is_gone(short) is None


def test_a_forked_child_is_a_process_of_its_own() -> None:
    # In an interpreter of its own: one that has threads, as this one may, is not to be forked.
    code = """
import os
from dsnb.storage.process_identity import this_process, is_gone
mine = this_process().unique_id()
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    os.write(writer, this_process().unique_id().encode())
    os._exit(0)
told = os.read(reader, 1000).decode()
os.waitpid(child, 0)
print(told != mine, is_gone(told))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]


def test_a_process_is_told_by_id_and_host() -> None:
    assert str(this_process()).startswith(f"process {os.getpid()} on ")
