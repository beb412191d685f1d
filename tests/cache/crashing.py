"""Kills a process that records at a named point, and looks what the next ones find; run in an interpreter of its own.

Victims are forked, not started: an interpreter with everything imported and no thread makes hundreds a minute.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np

import dsnb
from dsnb.cache.faults import POINTS, When, hooked
from dsnb.pipeline.operation import BuildContext
from tests.support.waiting import wait_for

LENGTH = 40
CHUNK = 8
NBYTES = 8 * 10
FINISHED = {"manifest", "dsnb-recordings.json", "about.json", "used", "lock"}
ELSEWHERE = {"segment remove", "shelf evict", "shelf sweep"}
"""Points that only others' deaths, or limits, lead to; they have tests of their own."""

Passing = tuple[str, When]


def dataset(folder: Path) -> dsnb.Dataset:
    """A pipeline that notes each call of its function in a file."""
    calls = str(folder / "calls")

    def row(x: int) -> np.ndarray:
        with open(calls, "ab", buffering=0) as file:
            file.write(b".")
        if x == LENGTH // 2:  # long enough in the function for the writer to be known by its pulse
            wait_for(lambda: list((folder / "cache").glob("*/*/beat/*")), what="a beat", timeout=20.0)
        return np.arange(10) + x

    return dsnb.Dataset.range(LENGTH).map(row).cache(folder / "cache", chunk_bytes=CHUNK * NBYTES, lease_seconds=0.4)


def read_right(folder: Path, count: int = LENGTH) -> None:
    for number, element in enumerate(dataset(folder).take(-1 if count == LENGTH else count)):
        assert element.tolist() == list(range(number, number + 10)), f"element {number} is {element}"
    assert number == count - 1, f"{number + 1} elements"


def calls(folder: Path) -> int:
    path = folder / "calls"
    return path.stat().st_size if path.exists() else 0


def leftovers(folder: Path) -> list[str]:
    """Files that no finished recording has."""
    recordings = list((folder / "cache").glob("*/[0-9]*"))
    files = (path for path in (folder / "cache").rglob("*") if path.is_file() and path.suffix != ".seg")
    found = [str(path) for path in files if path.name not in FINISHED]
    for recording in recordings:
        manifest = (recording / "manifest").read_text()
        found += [str(path) for path in (recording / "seg").iterdir() if path.name not in manifest]
    return found if len(recordings) == 1 else [*found, *map(str, recordings)]


def forked(act: Callable[[], None]) -> int:
    """Run in a child; its exit status: 0, 1 for an error, or the signal that ended it, negative."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            act()
            sys.stdout.flush()
        except BaseException:  # noqa: BLE001 - the parent sees the status, a person the traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def scenario(folder: Path) -> None:
    """A run that stops early, and one that goes on."""
    read_right(folder, LENGTH // 3)
    read_right(folder)


def passings() -> list[Passing]:
    """Each point that the scenario passes, as often as it does."""
    folder = Path(tempfile.mkdtemp(prefix="dsnb-crash-"))
    path = folder / "passings"
    # Whatever is imported late is imported here, once, and no thread is started by it.
    list(dataset(folder).operation.inputs[0].build(BuildContext(entropy=0)).pull(1))
    dataset(folder).operation.shelf().close()
    (folder / "calls").unlink()

    def act() -> None:
        found: list[Passing] = []
        with hooked(lambda name, when: found.append((name, when))):
            scenario(folder)
        path.write_text(json.dumps(found))

    assert forked(act) == 0
    found = [(name, when) for name, when in json.loads(path.read_text())]
    assert calls(folder) == LENGTH
    assert leftovers(folder) == []
    shutil.rmtree(folder)
    return found


def striker(target: Passing, number: int, blow: int = signal.SIGKILL) -> Callable[[str, When], None]:
    """Kills or stops this process when it passes a point for the n-th time."""
    left = [number]

    def hook(name: str, when: When) -> None:
        if (name, when) == target:
            left[0] -= 1
            if left[0] == -1:
                os.kill(os.getpid(), blow)

    return hook


def crash(folder: Path, kills: list[tuple[Passing, int]]) -> str:
    """Kill one run after the other, then let one finish; what was wrong, or nothing."""
    died = 0
    for target, number in kills:

        def victim(target: Passing = target, number: int = number) -> None:
            with hooked(striker(target, number)):
                scenario(folder)

        status = forked(victim)
        if status == 1:
            return "a victim met an error"
        died += status == -signal.SIGKILL
    if forked(lambda: read_right(folder)) != 0:
        return "the next run met an error"
    before = calls(folder)
    if before > LENGTH + CHUNK * died:
        return f"{before} calls for {LENGTH} elements and {died} kills"
    if forked(lambda: read_right(folder)) != 0 or calls(folder) != before:
        return "the recording was not complete"
    left = leftovers(folder)
    return f"left over: {left}" if left else ""


def stopped(folder: Path, target: Passing, number: int) -> str:
    """Stop a writer at a passing of a point, let another run finish, wake the writer up; what was wrong, or nothing."""
    sleeper = os.fork()
    if sleeper == 0:
        with hooked(striker(target, number, signal.SIGSTOP)):
            os._exit(_status(folder))
    _, status = os.waitpid(sleeper, os.WUNTRACED)
    if not os.WIFSTOPPED(status):
        return "" if os.waitstatus_to_exitcode(status) == 0 else "the run met an error before the point"
    other = forked(lambda: read_right(folder))
    os.kill(sleeper, signal.SIGCONT)
    woken = os.waitstatus_to_exitcode(os.waitpid(sleeper, 0)[1])
    if (other, woken) != (0, 0):
        return f"the other run ended with {other}, the woken one with {woken}"
    before = calls(folder)
    if before > LENGTH + CHUNK + 1:
        return f"{before} calls for {LENGTH} elements"
    if forked(lambda: read_right(folder)) != 0 or calls(folder) != before:
        return "the recording was not complete"
    left = leftovers(folder)
    return f"left over: {left}" if left else ""


def _status(folder: Path) -> int:
    try:
        read_right(folder)
    except BaseException:  # noqa: BLE001 - the parent sees the status, a person the traceback
        traceback.print_exc()
        return 1
    return 0


def asleep(every: int) -> dict[str, str]:
    """Stop at the first and at a later passing of each n-th point; problems by place."""
    problems = {}
    all_passings = passings()
    for target in list(dict.fromkeys(all_passings))[::every]:
        for number in sorted({0, all_passings.count(target) // 2}):
            folder = Path(tempfile.mkdtemp(prefix="dsnb-crash-"))
            problem = stopped(folder, target, number)
            if problem:
                problems[f"{target[0]}, {target[1]}, passing {number}"] = problem
            shutil.rmtree(folder)
    return problems


def at_each_point() -> dict[str, str]:
    """Kill at the first and the last passing of each point; problems by place."""
    all_passings = passings()
    missed = set(POINTS) - {name for name, _ in all_passings} - ELSEWHERE
    problems = {"points that no test passes": ", ".join(sorted(missed))} if missed else {}
    for target in dict.fromkeys(all_passings):
        for number in sorted({0, all_passings.count(target) - 1}):
            folder = Path(tempfile.mkdtemp(prefix="dsnb-crash-"))
            problem = crash(folder, [(target, number)])
            if problem:
                problems[f"{target[0]}, {target[1]}, passing {number}"] = problem
            shutil.rmtree(folder)
    return problems


def at_random(first: int, last: int) -> dict[str, str]:
    """Runs with one to three kills anywhere, by seed; problems by seed."""
    all_passings = passings()
    problems = {}
    for seed in range(first, last):
        draw = random.Random(seed)
        kills = []
        for _ in range(draw.randint(1, 3)):
            target = draw.choice(all_passings)
            kills.append((target, draw.randrange(all_passings.count(target))))
        folder = Path(tempfile.mkdtemp(prefix="dsnb-crash-"))
        problem = crash(folder, kills)
        if problem:
            problems[str(seed)] = f"{kills}: {problem}"
        shutil.rmtree(folder)
    return problems


def main(arguments: list[str]) -> None:
    kind, numbers = arguments[0], list(map(int, arguments[1:]))
    kinds: dict[str, Callable[..., dict[str, str]]] = {"random": at_random, "asleep": asleep, "points": at_each_point}
    problems = kinds[kind](*numbers)
    sys.stdout.write(f"PROBLEMS {json.dumps(problems)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
