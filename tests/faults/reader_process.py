"""A reader in a process of its own, which a test kills or suspends: it logs each element that its loop got.

python -m tests.faults.reader_process '{"target": ..., "dataset_id": ..., ...}'
"""

from __future__ import annotations

import json
import os
import struct
import sys
import time
import warnings
from typing import Any

import dsnb

RECORD = struct.Struct("<qd")
"""An element, and when the loop got it (`time.monotonic`, which all processes of a machine share)."""


def main(settings: dict[str, Any]) -> None:
    log = os.open(settings["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        errors: list[str] = []
        seen = 0
        dataset = reading(settings)
        say("READY")
        while settings.get("gate") and not os.path.exists(settings["gate"]):
            time.sleep(0.005)
        elements = iter(dataset)
        while True:
            try:
                element = next(elements)
            except StopIteration:
                break
            except Exception as error:  # noqa: BLE001 - what a user would see
                errors.append(f"{type(error).__name__}: {error}")
                if len(errors) > 3:
                    break
                continue
            numbers = [int(element)] if not getattr(element, "shape", ()) else [int(x) for x in element.flat]
            now = time.monotonic()
            os.write(log, b"".join(RECORD.pack(number, now) for number in numbers))
            if settings.get("stop_after") and (seen := seen + len(numbers)) >= settings["stop_after"]:
                elements.close()
                break
            if settings["pause_s"]:
                time.sleep(settings["pause_s"])
    texts = [str(warning.message) for warning in told]
    say("END " + json.dumps({"errors": errors, "warnings": texts}))


def say(line: str) -> None:
    """Tell the test that started this process."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def reading(settings: dict[str, Any]) -> dsnb.Dataset:
    """The distributed dataset that the settings tell, with a local batch behind it where they say so."""
    options: dict[str, Any] = {"job_name": settings["job_name"] or None}
    if settings.get("trainer"):
        options["cross_trainer_cache"] = dsnb.CrossTrainerCache(settings["trainer"], **settings.get("cache", {}))
    if settings.get("world_size"):
        options |= {"rank": settings["rank"], "world_size": settings["world_size"]}
    if settings.get("transfer"):
        options["data_transfer_protocol"] = settings["transfer"]
    if settings.get("limit"):
        options["max_outstanding_requests"] = settings["limit"]
    service = dsnb.connect(settings["target"])
    mode = getattr(dsnb.ShardingPolicy, settings["mode"], settings["mode"])
    dataset = dsnb.from_dataset_id(mode, service, settings["dataset_id"], **options)
    if settings.get("batch"):
        dataset = dataset.batch(settings["batch"])
    return dataset


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
