"""Files by URL through a service whose workers are processes: a store of objects, and a server of files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import dsnb
from tests.support.file_server import FileServer
from tests.support.requires import require_module
from tests.support.s3 import BUCKET, S3Server


@pytest.fixture(scope="module")
def store() -> Iterator[S3Server]:
    with S3Server() as server:
        with server.client() as client:
            for number in range(6):
                lines = "".join(f"{number * 100 + line}\n" for line in range(100))
                client.put_object(Bucket=BUCKET, Key=f"train/{number}.txt", Body=lines.encode())
        yield server


@pytest.mark.slow
def test_each_line_of_a_store_of_objects_is_read_once(store: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in store.env.items():
        monkeypatch.setenv(name, value)
    files = [f"s3://{BUCKET}/train/{number}.txt" for number in range(6)]
    with dsnb.start(workers=3, isolation="process") as service:
        ds = dsnb.TextLineDataset(files).map(int).apply(dsnb.distribute("distributed_epoch", service))
        assert Counter(int(x) for x in ds) == Counter(range(600))


@pytest.mark.slow
def test_a_missing_file_names_its_worker_and_host(tmp_path: Path) -> None:
    require_module("aiohttp")
    with FileServer(tmp_path) as files, dsnb.start(workers=1) as service:
        ds = dsnb.TextLineDataset(f"{files.url}/missing").apply(dsnb.distribute("distributed_epoch", service))
        with pytest.raises(FileNotFoundError) as caught:
            list(ds)
    notes = "\n".join(caught.value.__notes__)
    assert "on worker" in notes
    assert "looked for on the host" in notes
