"""Credentials stay where fsspec finds them: no pickle, work folder, status, report, position, log or error has them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dsnb
from tests.support.parquet import write_numbers
from tests.support.processes import PythonProcess
from tests.support.requires import require_module
from tests.support.s3 import BUCKET, S3Server
from tests.support.shards import samples, shard

SECRET = "hush-nobody-shows-this"

READING = """
import os, pickle, sys, dsnb
from dsnb.pipeline.graph import serialise
from tests.support.parquet import numbers_of

def read(ds, service):
    print(serialise(ds.operation), pickle.dumps(serialise(ds.operation)), repr(ds), ds._repr_html_())
    got = []
    with iter(ds.apply(dsnb.distribute("distributed_epoch", service))) as elements:
        while True:
            try:
                got.append(next(elements))
            except StopIteration:
                break
            except Exception as error:
                print(repr(error), error, getattr(error, "__notes__", ()), error.__cause__, error.__context__)
                got.append("error")
        print(elements.state_dict())
    return got

if __name__ == "__main__":
    work, url = sys.argv[1:]
    with dsnb.start(workers=2, isolation="process", work_dir=work) as service:
        names = dsnb.Dataset.list_files(f"{url}/*.txt")
        counts = {
            "lines": len(read(names.interleave(dsnb.TextLineDataset), service)),
            "records": len(read(dsnb.TFRecordDataset([f"{url}/a.tfrecord", f"{url}/b.tfrecord"]), service)),
            "samples": len(read(dsnb.WebDataset(f"{url}/{{a,b}}.tar"), service)),
            "rows": len(numbers_of(read(dsnb.ParquetDataset(url + "/*.parquet", batch_size=4), service))),
            "saved": len(read(dsnb.Dataset.load(f"{url}/saved"), service)),
            "missing": read(dsnb.TextLineDataset([f"{url}/missing.txt"]), service),
            "refused": read(dsnb.TextLineDataset(["s3://no-such-bucket/a.txt"]), service),
        }
        status = service.status()
        print(repr(status), status._repr_html_(), status.to_dict(), service.explain(0.1))
        service.report(os.path.join(work, "report.html"))
    print("COUNTS", end=" ")
    import json; print(json.dumps(counts))
"""


def fill(store: S3Server, folder: Path) -> None:
    """Put the same 12 rows into the store as each kind of file."""
    for number, name in enumerate("ab"):
        (folder / f"{name}.txt").write_text("".join(f"{line}\n" for line in range(6)))
        with dsnb.TFRecordWriter(folder / f"{name}.tfrecord") as writer:
            for line in range(6):
                writer.write(b"%d" % line)
        shard(folder / f"{name}.tar", samples(6 * number, 6))
    write_numbers(folder, 2, 6, rows_per_group=3)
    dsnb.Dataset.range(12).save(folder / "saved", 1)
    with store.client() as client:
        for file in folder.rglob("*.*"):
            if file.is_file():
                client.upload_file(str(file), BUCKET, f"train/{file.relative_to(folder)}")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_credentials_in_the_configuration_of_fsspec_are_used_and_shown_nowhere(tmp_path: Path) -> None:
    require_module("pyarrow")
    data, config, work = (tmp_path / name for name in ("data", "config", "work"))
    for folder in (data, config, work):
        folder.mkdir()
    with S3Server() as store:
        fill(store, data)
        settings = {"key": "an-identity", "secret": SECRET, "endpoint_url": store.env["AWS_ENDPOINT_URL"]}
        (config / "s3.json").write_text(json.dumps({"s3": settings}))
        env = {"FSSPEC_CONFIG_DIR": str(config), "AWS_MAX_ATTEMPTS": "1"}
        with PythonProcess(["-c", READING, str(work), f"s3://{BUCKET}/train"], env=env) as process:
            assert process.popen.wait(250) == 0, process.describe()
            shown = process.stdout + process.stderr
    counts = json.loads(shown.partition("COUNTS ")[2].splitlines()[0])
    assert counts == {
        "lines": 12, "records": 12, "samples": 12, "rows": 12, "saved": 12, "missing": ["error"], "refused": ["error"],
    }  # fmt: skip
    assert SECRET not in shown
    kept = [file for file in work.rglob("*") if file.is_file()]
    assert len(kept) > 1
    assert [file.name for file in kept if SECRET.encode() in file.read_bytes()] == []
