"""obstore in the place of s3fs, registered as docs/pipelines.md says, gives the same rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.parquet import write_numbers
from tests.support.processes import PythonProcess
from tests.support.requires import require_peer
from tests.support.s3 import BUCKET, S3Server

READING = """
import json, sys, dsnb, fsspec, obstore.fsspec
from tests.support.parquet import numbers_of

obstore.fsspec.register("s3")
url = sys.argv[1]
with dsnb.start(workers=2) as service:
    rows = dsnb.ParquetDataset(f"{url}/*.parquet", batch_size=4)
    found = numbers_of(list(rows.apply(dsnb.distribute("distributed_epoch", service))))
lines = list(dsnb.Dataset.list_files(f"{url}/*.txt").flat_map(dsnb.TextLineDataset))
missing = dsnb.TextLineDataset(f"{url}/missing.txt")
try:
    list(missing)
except FileNotFoundError as error:
    missing = "missing"
print(json.dumps([type(fsspec.filesystem("s3")).__module__, sorted(found), lines, missing]))
"""


@pytest.mark.slow
def test_files_are_listed_and_read_by_obstore(tmp_path: Path) -> None:
    require_peer("obstore")
    write_numbers(tmp_path, 2, 20)
    (tmp_path / "a.txt").write_text("a\nb\n")
    with S3Server() as store:
        with store.client() as client:
            for file in tmp_path.iterdir():
                client.upload_file(str(file), BUCKET, f"train/{file.name}")
        env = {**store.env, "AWS_ALLOW_HTTP": "true"}
        with PythonProcess(["-c", READING, f"s3://{BUCKET}/train"], env=env) as process:
            # Its exit code would say nothing of dsnb: obstore 0.12 now and then aborts an interpreter that ends right
            # after a read, because the thread that delivered the result still wants the GIL then.
            found = json.loads(process.wait_for_line("[", timeout=120))
    assert found == ["obstore.fsspec", list(range(40)), ["a", "b"], "missing"]
