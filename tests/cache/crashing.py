"""Kills a process that records at a named point, and looks what the next ones find; run in an interpreter of its own.

Victims are forked, not started: an interpreter with everything imported and no thread makes hundreds a minute.

    python -m tests.cache.crashing SCENE points [WORD] | full [WORD] | random FIRST LAST | asleep EVERY
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
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dsnb.errors import CacheWarning
from dsnb.pipeline.operation import BuildContext
from dsnb.storage.failpoints import FAILPOINTS, Fault, failpoint_hook
from tests.cache.scenes import LENGTH, Alone, Crowded, OnRedis, Passing, Splits, calls_of, dataset

SCENES: dict[str, Callable[[], Alone]] = {"alone": Alone, "crowded": Crowded, "splits": Splits}
_DATABASES = 16


@contextmanager
def stage_folder() -> Iterator[Path]:
    """A folder for one crash."""
    global _folders
    _folders += 1
    folder = Path(tempfile.mkdtemp(prefix="crash-"))
    (folder / "database").write_text(str(_folders % _DATABASES))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


_folders = 0


def forked(act: Callable[[], object]) -> int:
    """Run in a child; its exit status: 0, 1 for an error, or the signal that ended it, negative."""
    return os.waitstatus_to_exitcode(os.waitpid(_child(act), 0)[1])


def _child(act: Callable[[], object]) -> int:
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    try:
        act()
        sys.stdout.flush()
    except BaseException:  # noqa: BLE001 - the parent sees the status, a person the traceback
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def striker(target: Passing, number: int, blow: int = signal.SIGKILL) -> Callable[[str, str], None]:
    """Kills or stops this process when it passes a point for the n-th time."""
    left = [number]

    def hook(name: str, when: str) -> None:
        if (name, when) == target:
            left[0] -= 1
            if left[0] == -1:
                os.kill(os.getpid(), blow)

    return hook


def struck(scene: Alone, folder: Path, target: Passing, number: int, blow: int = signal.SIGKILL) -> None:
    """Play a scenario, and be struck at a passing of a point."""
    with failpoint_hook(striker(target, number, blow)):
        scene.play(folder)


def prepared(scene: Alone, folder: Path) -> int:
    """Let those die who leave something for the scenario; how many did."""
    return sum(forked(lambda target=target: struck(scene, folder, target, 0)) < 0 for target in scene.before)


def passings(scene: Alone) -> list[Passing]:
    """Each point that the scenario passes, as often as it does."""
    with stage_folder() as folder:
        # Whatever is imported late is imported here, once, and no thread is started by it.
        list(dataset(folder).operation.inputs[0].build(BuildContext(entropy=0)).pull(1))
        dataset(folder).operation.recordings().close()
        (folder / "calls").unlink()
        path = folder / "passings"
        assert prepared(scene, folder) == len(scene.before)

        def act() -> None:
            found: list[Passing] = []
            with failpoint_hook(lambda name, when: found.append((name, when))):
                scene.play(folder)
            path.write_text(json.dumps(found))

        assert forked(act) == 0
        assert calls_of(folder) >= LENGTH
        assert forked(lambda: _nothing(scene, folder)) == 0
        return [(name, when) for name, when in json.loads(path.read_text())]


def _nothing(scene: Alone, folder: Path) -> None:
    assert scene.wrong(folder) == ""


def crash(scene: Alone, folder: Path, kills: list[tuple[Passing, int]]) -> str:
    """Kill one run after the other, then let one finish; what was wrong, or nothing."""
    died = prepared(scene, folder)
    for target, number in kills:
        status = forked(lambda target=target, number=number: struck(scene, folder, target, number))
        if status == 1:
            return "a victim met an error"
        died += status == -signal.SIGKILL
    return ended(scene, folder, scene.most_calls(len(kills), died))


def ended(scene: Alone, folder: Path, most: int) -> str:
    """Let a run finish; what was wrong, or nothing."""
    if forked(lambda: scene.end(folder)) != 0:
        return "the next run met an error"
    before = calls_of(folder)
    if before > most:
        return f"{before} calls for {LENGTH} elements, and not at most {most}"
    if forked(lambda: scene.end(folder)) != 0 or (calls_of(folder) != before and not isinstance(scene, Crowded)):
        return "the recording was not complete"
    looked = folder / "wrong"
    if forked(lambda: looked.write_text(scene.wrong(folder))) != 0:
        return "what is left could not be looked at"
    return looked.read_text()


def stopped(scene: Alone, folder: Path, target: Passing, number: int) -> str:
    """Stop a writer at a passing of a point, let another run finish, wake the writer up; what was wrong, or nothing."""
    sleeper = _child(lambda: struck(scene, folder, target, number, signal.SIGSTOP))
    _, status = os.waitpid(sleeper, os.WUNTRACED)
    if not os.WIFSTOPPED(status):
        return "" if os.waitstatus_to_exitcode(status) == 0 else "the run met an error before the point"
    other = forked(lambda: scene.end(folder))
    os.kill(sleeper, signal.SIGCONT)
    woken = os.waitstatus_to_exitcode(os.waitpid(sleeper, 0)[1])
    if (other, woken) != (0, 0):
        return f"the other run ended with {other}, the woken one with {woken}"
    return ended(scene, folder, scene.most_calls(2, 1) + 1)


def asleep(scene: Alone, every: str) -> dict[str, str]:
    """Stop at the first and at a later passing of each n-th point; problems by place."""
    there = passings(scene)
    problems = {}
    for target in list(dict.fromkeys(there))[:: int(every)]:
        for number in sorted({0, there.count(target) // 2}):
            with stage_folder() as folder:
                problems[f"{target[0]}, {target[1]}, passing {number}"] = stopped(scene, folder, target, number)
    return problems


def at_each_point(scene: Alone, word: str = "") -> dict[str, str]:
    """Kill at the first and the last passing of each point with this word in its name; problems by place."""
    there = passings(scene)
    problems = {}
    for target in (target for target in dict.fromkeys(there) if word in target[0]):
        for number in sorted({0, there.count(target) - 1}):
            with stage_folder() as folder:
                problem = crash(scene, folder, [(target, number)])
            problems[f"{target[0]}, {target[1]}, passing {number}"] = problem
    return problems


def full_disk(scene: Alone, word: str = "") -> dict[str, str]:
    """Let the disk be full at the first passing of each point with this word in its name; problems by place."""
    problems = {}
    for name, when in dict.fromkeys(passings(scene)):
        if when == "before" and word in name and FAILPOINTS[name].error is not None:
            with stage_folder() as folder:
                problems[f"{name}, {when}, passing 0"] = _met_full_disk(scene, folder, name)
    return problems


def _met_full_disk(scene: Alone, folder: Path, name: str) -> str:
    prepared(scene, folder)

    def play() -> None:
        warnings.simplefilter("ignore", CacheWarning)
        with failpoint_hook(Fault(f"{name}/before:fail")):
            scene.play(folder)

    if forked(play) != 0:
        return "the run met an error"
    return ended(scene, folder, scene.most_calls(2, 2) + LENGTH)


def at_random(scene: Alone, first: str, last: str) -> dict[str, str]:
    """Runs with one to three kills anywhere, by seed; problems by seed."""
    there = passings(scene)
    problems = {}
    for seed in range(int(first), int(last)):
        draw = random.Random(seed)
        targets = [draw.choice(there) for _ in range(draw.randint(1, 3))]
        kills = [(target, draw.randrange(there.count(target))) for target in targets]
        with stage_folder() as folder:
            problem = crash(scene, folder, kills)
        problems[str(seed)] = f"{kills}: {problem}" if problem else ""
    return problems


def points_of(scene: Alone) -> dict[str, str]:
    """The points that the scenario passes."""
    return {name: "" for name, _ in passings(scene)}


def main(name: str, kind: str, *words: str) -> None:
    """Print what each run found: empty where nothing is wrong."""
    scene = OnRedis(name) if name.startswith("redis://") else SCENES[name]()
    kinds: dict[str, Callable[..., dict[str, str]]] = {
        "random": at_random, "asleep": asleep, "points": at_each_point, "passed": points_of,
        "full": full_disk,
    }  # fmt: skip
    sys.stdout.write(f"FOUND {json.dumps(kinds[kind](scene, *words))}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
