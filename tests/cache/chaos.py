"""Random faults for runs that share a recording: readers die and sleep, and the backend fails in all its ways."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.cache.company import Runs
from tests.support.processes import PythonProcess
from tests.support.redis import RedisServer
from tests.support.s3 import BUCKET, S3Server
from tests.support.waiting import wait_for

Faults = dict[str, Callable[[random.Random], None]]
"""What may happen to a backend. It works again when the call returns; what it had may be lost."""


def passed(seconds: float) -> None:
    """Let time pass while something is out of order."""
    until = time.monotonic() + seconds
    wait_for(lambda: time.monotonic() >= until, what="the fault to last", timeout=60)


def torment(runs: Runs, faults: Faults, seed: int, seconds: float, number: int = 3) -> None:
    """Keep runs going while readers and the backend fail at random; then let all finish, and look what is recorded.

    Each run compares each element. None may call the function more than twice for an element on account of the backend.

    Args:
        runs: Of what.
        faults: Of the backend.
        seed: Says what fails when.
        seconds: For how long.
        number: How many runs at a time.
    """
    draw = random.Random(seed)
    going = [runs.start() for _ in range(number)]
    done: list[str] = []
    begun = time.monotonic()
    while time.monotonic() - begun < seconds:
        passed(draw.uniform(0.05, 0.8))
        place = draw.randrange(number)
        if going[place].popen.poll() is not None:
            runs.finished(going[place])
            going[place] = runs.start()
        done.append(_strike(runs, faults, draw, going, place))
    for process in going:
        runs.finished(process)
    sys.stdout.write(f"seed {seed}: {', '.join(done)}; {runs.finished_runs} finished, {runs.calls()} calls\n")
    over = {pid: made for pid, made in runs.calls_by_run().items() if made > 2 * runs.length}
    assert not over, f"calls of one run for {runs.length} elements: {over}"
    _works_again(runs)


def _strike(runs: Runs, faults: Faults, draw: random.Random, going: list[PythonProcess], place: int) -> str:
    kind = draw.choice(["kill", "suspend", *faults, *faults])
    if kind == "kill":
        runs.kill(going[place])
        going[place] = runs.start()
    elif kind == "suspend":
        with suppress(ProcessLookupError):
            going[place].popen.send_signal(signal.SIGSTOP)
            passed(draw.uniform(0.1, 1.6))  # a lease takes one second
            going[place].popen.send_signal(signal.SIGCONT)
    else:
        faults[kind](draw)
    return kind


def _works_again(runs: Runs) -> None:
    """A run may have to record what was lost; the next one has nothing to do."""
    for last in (False, True):
        before = runs.calls()
        runs.finished(runs.start())
        assert runs.calls() <= before + (0 if last else 2 * runs.length)


# --------------------------------------------------------------------------------------------------------- backends


def on_redis(server: RedisServer) -> Faults:
    """What may happen to a Redis server."""

    def restart(draw: random.Random) -> None:
        server.kill()
        passed(draw.choice([0.0, 0.5]))
        server.start()

    def with_client(act: Callable[[Any, random.Random], None]) -> Callable[[random.Random], None]:
        def do(draw: random.Random) -> None:
            with server.client() as client:
                act(client, draw)

        return do

    def forget(client: Any, draw: random.Random) -> None:
        for key in client.scan_iter("dsnb:*"):
            if draw.random() < 0.2:
                client.unlink(key)

    def evict(client: Any, draw: random.Random) -> None:
        _set(client, {"maxmemory-policy": draw.choice(["allkeys-random", "allkeys-lru"]), "maxmemory": "1mb"})
        passed(0.3)
        _set(client, {"maxmemory": "0", "maxmemory-policy": "noeviction"})

    def fill(client: Any, draw: random.Random) -> None:
        _set(client, {"maxmemory": "1"})
        passed(0.3)
        _set(client, {"maxmemory": "0"})

    def refuse_writes(client: Any, draw: random.Random) -> None:
        client.replicaof("127.0.0.1", 1)
        passed(0.3)
        client.replicaof("NO", "ONE")

    return {
        "restart": restart,
        "kill clients": with_client(lambda client, _: client.client_kill_filter(_type="normal", skipme=True)),
        "flush": with_client(lambda client, _: client.flushall()),
        "pause": with_client(lambda client, _: client.client_pause(400)),
        "forget": with_client(forget),
        "evict": with_client(evict),
        "fill": with_client(fill),
        "refuse writes": with_client(refuse_writes),
    }


def _set(client: Any, settings: dict[str, str]) -> None:
    for name, value in settings.items():
        client.config_set(name, value)


def on_files(folder: Path) -> Faults:
    """What may happen to files; to a directory, or to the files that fsspec keeps in one."""

    def victims() -> list[Path]:
        # Damage could make another format of this one, which is refused.
        return [path for path in folder.rglob("*") if path.is_file() and path.name != "dsnb-recordings.json"]

    def one(act: Callable[[Path, random.Random], None]) -> Callable[[random.Random], None]:
        def do(draw: random.Random) -> None:
            there = sorted(victims())
            with suppress(OSError):
                if there:
                    act(draw.choice(there), draw)

        return do

    def cut(path: Path, draw: random.Random) -> None:
        os.truncate(path, int(path.stat().st_size * draw.random()))

    def flip(path: Path, draw: random.Random) -> None:
        data = bytearray(path.read_bytes())
        if data:
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
            with path.open("r+b") as file:
                file.write(data)

    def stand_in(draw: random.Random) -> None:
        there = sorted(path for path in folder.rglob("*") if path.is_dir())
        aside = folder.with_name("aside")
        with suppress(OSError):
            victim = draw.choice(there or [folder])
            victim.rename(aside)
            if victim != folder:  # a place that is a file is refused where it is given
                victim.write_text("a file where the folder was")
            passed(0.3)
            victim.unlink(missing_ok=True)
            aside.rename(victim)
        shutil.rmtree(aside, ignore_errors=True)

    return {
        "cut": one(cut),
        "flip": one(flip),
        "remove one": one(lambda path, _: path.unlink()),
        "remove all": lambda _: shutil.rmtree(folder, ignore_errors=True),
        "stand in": stand_in,
    }


def on_s3(server: S3Server) -> Faults:
    """What may happen to a store of objects."""

    def restart(draw: random.Random) -> None:
        server.kill()
        server.start()

    def suspend(draw: random.Random) -> None:
        server.suspend()
        passed(0.5)
        server.suspend(wake=True)

    def objects(draw: random.Random, share: float) -> Iterator[str]:
        with server.client() as client:
            found = client.list_objects_v2(Bucket=BUCKET).get("Contents", [])
        return (each["Key"] for each in found if draw.random() < share)

    def remove(draw: random.Random) -> None:
        with server.client() as client:
            for key in objects(draw, 0.2):
                client.delete_object(Bucket=BUCKET, Key=key)

    def overwrite(draw: random.Random) -> None:
        with server.client() as client:
            for key in objects(draw, 0.1):
                client.put_object(Bucket=BUCKET, Key=key, Body=b"what")

    return {"restart": restart, "suspend": suspend, "remove": remove, "overwrite": overwrite}
