"""Kills processes that use one training cache at chosen points, and looks at what they leave.

Run as a program: a process without threads and without an open database, that forks its victims. It prints a line of
JSON: how often each point was died at, and what was found wrong.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from dsnb.cache.results.index import Index
from dsnb.cache.results.training import LocalTrainingCache
from dsnb.storage.failpoints import FAILPOINTS, When, failpoint_hook
from tests.cache.steps import get, known, put, results, weight

LIMIT = 0.0625  # MiB: a few results, so that room is made all the time
KEYS = 12
POINTS_OF_THE_CACHE = sorted(name for name in FAILPOINTS if name.startswith(("result ", "entry ")))
PLANS: list[tuple[str, When]] = [(name, when) for name in POINTS_OF_THE_CACHE for when in ("before", "after")]
ROUND = 20  # runs that follow one another in one folder: what the first leaves, the next begins with


def main(first: int, runs: int) -> None:
    """Do so many runs, with seeds from `first` on."""
    died: Counter[str] = Counter()
    wrong: list[str] = []
    for begin in range(first, first + runs, ROUND):
        with tempfile.TemporaryDirectory(prefix="killing-") as folder:
            for seed in range(begin, min(begin + ROUND, first + runs)):
                died.update(run(Path(folder), seed))
                wrong += [f"seed {seed}: {line}" for line in checked(Path(folder))]
    sys.stdout.write(json.dumps({"died": died, "wrong": wrong}) + "\n")


def run(folder: Path, seed: int) -> list[str]:
    """Two victims at a time, the second without a plan to die in every other run; where they died."""
    plans = [PLANS[seed % len(PLANS)], None if seed % 2 else PLANS[seed * 7 % len(PLANS)]]
    children = [fork(lambda plan=plan, number=number: use(folder, seed * 2 + number, plan))
                for number, plan in enumerate(plans)]  # fmt: skip
    died = []
    for child, plan in zip(children, plans, strict=True):
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            died.append(f"{plan[0]} {plan[1]}" if plan else "unplanned")
        elif os.waitstatus_to_exitcode(status):
            died.append("failed")
    return died


def fork(body: Callable[[], None]) -> int:
    child = os.fork()
    if child:
        return child
    try:
        body()
    except BaseException:  # noqa: BLE001 - a forked child never goes back into what its parent was doing
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def use(folder: Path, seed: int, plan: tuple[str, When] | None) -> None:
    """Store and read at random, and die at the planned point's n-th passing; what is stored is noted when it is."""
    chance = random.Random(seed)
    countdown = [chance.choice([1, 1, 2, 3, 5, 9])]

    def die(name: str, when: When) -> None:
        if (name, when) == plan:
            countdown[0] -= 1
            if not countdown[0]:
                os.kill(os.getpid(), signal.SIGKILL)

    with failpoint_hook(die), LocalTrainingCache(folder / "cache", max_size=LIMIT) as cache:
        for _ in range(40):
            step(cache, chance)


def step(cache: LocalTrainingCache, chance: random.Random) -> None:
    name = str(chance.randrange(KEYS))
    if chance.random() < 0.6:
        # A key is stored with different results in turn, and two keys with equal ones.
        put(cache, name, chance.choice([100, 9_000, 20_000, 30_000]))
    elif chance.random() < 0.5:
        get(cache, name)  # checks its bytes
    else:
        known(cache, name)


def checked(folder: Path) -> list[str]:
    """What is wrong after opening the cache again, as lines; looked at in a process of its own."""
    reading, writing = os.pipe()
    child = fork(lambda: os.write(writing, json.dumps(look(folder)).encode()))
    os.close(writing)
    with os.fdopen(reading) as answers:
        text = answers.read()
    _, status = os.waitpid(child, 0)
    return json.loads(text) if status == 0 else [f"the look ended with {status}"]


def look(folder: Path) -> list[str]:
    with LocalTrainingCache(folder / "cache", max_size=LIMIT) as cache, cache.store.reading() as index:
        there = results(cache)
        named = index.locations()
        wrong = [f"{path.name} is an orphan" for path in there if path.name not in named]
        wrong += [f"{name} is named and not there" for name in named - {path.name for path in there}]
        if cache.used != weight(there):
            wrong.append(f"{cache.used} bytes are counted, {weight(there)} are there")
        if cache.used > LIMIT * (1 << 20):
            wrong.append(f"{cache.used} bytes are over the limit")
        wrong += [f"{left} leases are left" for left in (left_leases(index),) if left]
        wrong += [f"the result of {output} is not whole" for output in outputs(index) if get(cache, output) is None]
        # It works: what is stored now is there.
        return wrong if put(cache, "afterwards", 100) == get(cache, "afterwards") else [*wrong, "nothing can be stored"]


def left_leases(index: Index) -> int:
    return int(index.database.value("SELECT count(*) FROM lease"))


def outputs(index: Index) -> list[str]:
    found = index.database.column(
        "SELECT DISTINCT output_fingerprint_key FROM cache_entry WHERE result_location IS NOT NULL"
    )
    return [output.removeprefix("output ") for output in found]


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
