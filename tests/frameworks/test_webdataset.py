"""The library webdataset reads the same samples from the same shards, and dsnb reads the shards that it writes."""

from __future__ import annotations

from pathlib import Path

from dsnb.pipeline.file_datasets import WebDataset
from tests.pipeline.driving import run
from tests.support.requires import require_peer

webdataset = require_peer("webdataset")


def test_its_writer_and_reader_agree_with_dsnb(tmp_path: Path) -> None:
    written = [
        {"__key__": "v1.2/a", "seg.PNG": b"1", "json": b"2"},
        {"__key__": "v1.2/b", "json": b"3"},
        {"__key__": "b", "txt": b"4"},
    ]
    path = str(tmp_path / "a.tar")
    with webdataset.TarWriter(path) as writer:
        for sample in written:
            writer.write(sample)
    with open(path, "rb") as file:
        files = ({**one, "__url__": path} for one in webdataset.tariterators.tar_file_iterator(file))
        groups = list(webdataset.tariterators.group_by_keys(files))
    its = [{key: part for key, part in one.items() if key not in {"__url__", "__local_path__"}} for one in groups]
    assert run(WebDataset(path)) == its
    assert [set(sample) for sample in its] == [{"__key__", "seg.png", "json"}, {"__key__", "json"}, {"__key__", "txt"}]
