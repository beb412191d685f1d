"""`WebDataset`: samples grouped as webdataset does it, shards as splits, damage as one error."""

from __future__ import annotations

import gzip
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import dsnb
from dsnb.errors import DataLossError, InvalidArgumentError, NotFoundError
from dsnb.pipeline.dataset import Dataset
from dsnb.pipeline.file_datasets import WebDataset
from dsnb.pipeline.sharding import sharded
from dsnb.pipeline.sources.web_samples import expand_braces
from dsnb.testing import assert_resumable
from tests.pipeline.driving import outcomes, plain, run, values
from tests.support.file_server import FileServer
from tests.support.requires import require_module
from tests.support.shards import samples, shard


def keys(found: Sequence[Any]) -> list[str]:
    return [plain(one) if isinstance(one, Exception) else one["__key__"] for one in found]


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.tgz"])
@pytest.mark.parametrize("kind", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
@pytest.mark.parametrize("wants", [[1], [1024]], ids=str)
def test_samples_are_dicts_of_their_files(tmp_path: Path, name: str, kind: int, wants: list[int]) -> None:
    found = run(WebDataset(shard(tmp_path / name, samples(0, 3), kind)), wants)
    assert found == [{"__key__": f"{n:04}", "jpg": f"jpg {n}".encode(), "cls": f"cls {n}".encode()} for n in range(3)]


def test_keys_end_at_the_first_dot_of_the_name(tmp_path: Path) -> None:
    files = [
        ("v1.2/a.seg.PNG", b"1"),
        ("v1.2/a.json", b"2"),
        ("v1.2/b.json", b"3"),
        ("b.json", b"4"),
        ("README", b"no dot"),
        (".hidden", b"no key"),
        ("__meta__/c.json", b"meta"),
        ("x" * 150 + "/ü.txt", b"5"),
    ]
    assert run(WebDataset(shard(tmp_path / "a.tar", files))) == [
        {"__key__": "v1.2/a", "seg.png": b"1", "json": b"2"},
        {"__key__": "v1.2/b", "json": b"3"},
        {"__key__": "b", "json": b"4"},
        {"__key__": "x" * 150 + "/ü", "txt": b"5"},
    ]


def test_a_sample_without_a_part_lacks_it_and_its_user_gets_the_error_in_its_place(tmp_path: Path) -> None:
    files = [*samples(0, 1), ("0001.jpg", b"alone"), *samples(2, 1)]
    ds = WebDataset(shard(tmp_path / "a.tar", files))
    assert [set(sample) for sample in run(ds)] == [
        {"__key__", "jpg", "cls"},
        {"__key__", "jpg"},
        {"__key__", "jpg", "cls"},
    ]
    found = outcomes(ds.map(lambda sample: sample["cls"]))
    assert [plain(one) for one in found] == [b"cls 0", "KeyError", b"cls 2"]
    assert keys(outcomes(ds)) == ["0000", "InvalidArgumentError", "0002"]  # elements must have one structure
    assert keys(outcomes(ds.filter(lambda sample: "cls" in sample))) == ["0000", "0002"]


def test_links_and_folders_are_no_files(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as archive:
        for name, kind in (("d.dir", tarfile.DIRTYPE), ("l.txt", tarfile.SYMTYPE)):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, "/etc/passwd"
            archive.addfile(entry)
    assert values(WebDataset(str(path))) == []


@pytest.mark.parametrize("at", [100, 700, 1024, 1500, 3000])
def test_a_shard_that_is_cut_off_is_one_error_and_the_next_follows(tmp_path: Path, at: int) -> None:
    first, second = shard(tmp_path / "a.tar", samples(0, 3)), shard(tmp_path / "b.tar", samples(3, 1))
    Path(first).write_bytes(Path(first).read_bytes()[:at])
    *before, error, last = outcomes(WebDataset([first, second]))
    assert keys(before) == [f"{n:04}" for n in range(len(before))]
    assert len(before) == (at - 1) // 2560  # whole samples that the next one follows
    assert isinstance(error, DataLossError)
    assert f"the shard {first} cannot be read further" in error.what
    assert last["__key__"] == "0003"


def test_damage_in_the_middle_is_no_silent_end(tmp_path: Path) -> None:
    path = Path(shard(tmp_path / "a.tar", samples(0, 5)))
    data = bytearray(path.read_bytes())
    data[4096 : 4096 + 512] = b"\xff" * 512
    path.write_bytes(data)
    found = outcomes(WebDataset(str(path)))
    assert keys(found) == ["0000", "DataLossError"]
    assert "at byte 4,096" in found[1].what


def test_a_damaged_gzip_shard_is_one_error(tmp_path: Path) -> None:
    whole = gzip.compress(Path(shard(tmp_path / "a.tar", samples(0, 50))).read_bytes())
    (tmp_path / "a.tar.gz").write_bytes(whole[: len(whole) // 2])
    found = outcomes(WebDataset(str(tmp_path / "a.tar.gz")))
    assert keys(found)[-1] == "DataLossError"
    assert keys(found).count("DataLossError") == 1


def test_what_is_no_tar_file_or_empty_is_one_error(tmp_path: Path) -> None:
    for name, data in (("a.tar", b"x" * 2000), ("b.tar", b"")):
        (tmp_path / name).write_bytes(data)
    good = shard(tmp_path / "c.tar", samples(0, 1))
    found = outcomes(WebDataset([str(tmp_path / "a.tar"), str(tmp_path / "b.tar"), str(tmp_path / "gone.tar"), good]))
    assert keys(found) == ["DataLossError", "DataLossError", "FileNotFoundError", "0000"]


def test_a_file_twice_in_one_sample_is_an_error(tmp_path: Path) -> None:
    (error,) = outcomes(WebDataset(shard(tmp_path / "a.tar", [("a.txt", b"1"), ("a.TXT", b"2")])))
    assert "has the file a.TXT twice in one sample" in error.what


@pytest.mark.parametrize(
    "pattern, names",
    [
        ("a.tar", ["a.tar"]),
        ("{00..02}", ["00", "01", "02"]),
        ("{8..10}", ["8", "9", "10"]),
        ("{08..10}", ["08", "09", "10"]),
        ("{3..1}", ["3", "2", "1"]),
        ("{0..9..4}", ["0", "4", "8"]),
        ("{a,b}{1..2}", ["a1", "a2", "b1", "b2"]),
        ("{a}-{", ["{a}-{"]),
        ("s3://b/{x,}", ["s3://b/x", "s3://b/"]),
    ],
)
def test_braces_are_expanded(pattern: str, names: list[str]) -> None:
    assert expand_braces("urls", pattern) == names


@pytest.mark.parametrize("pattern", ["{0..1000000}", "{0..999999999999}", "{1..2000}{1..2000}"])
def test_too_many_names_are_refused(pattern: str) -> None:
    with pytest.raises(InvalidArgumentError, match="`urls` stands for"):
        WebDataset(pattern)


def test_patterns_with_stars_and_wrong_arguments(tmp_path: Path) -> None:
    for name in "ab":
        shard(tmp_path / f"{name}.tar", samples(0, 1))
    assert len(values(WebDataset(f"{tmp_path}/*.tar"))) == 2
    assert len(values(WebDataset(f"{tmp_path}/{{a,b}}.tar"))) == 2
    with pytest.raises(NotFoundError, match="no file matches `urls`"):
        WebDataset(f"{tmp_path}/*.zip")
    for wrong in (5, [], ["a", 5]):
        with pytest.raises(InvalidArgumentError, match="`urls`"):
            WebDataset(wrong)


def test_reading_resumes_at_every_sample(tmp_path: Path) -> None:
    assert_resumable(WebDataset([shard(tmp_path / f"{n}.tar", samples(3 * n, 3)) for n in range(3)]))


def test_file_sharding_divides_the_shards(tmp_path: Path) -> None:
    ds = WebDataset([shard(tmp_path / f"{n}.tar", samples(n, 1)) for n in range(5)])
    assert keys(list(Dataset(sharded(ds.operation, "FILE", 2, 1)))) == ["0001", "0003"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FileServer]:
    require_module("aiohttp")
    with FileServer(tmp_path) as served:
        yield served


def test_shards_are_read_by_url_several_at_once(server: FileServer) -> None:
    for number in range(4):
        shard(server.folder / f"{number:03}.tar.gz", samples(3 * number, 3))
    ds = WebDataset(f"{server.url}/{{000..003}}.tar.gz")
    assert keys(list(ds)) == [f"{n:04}" for n in range(12)]
    server.delay_s, server.most_at_once = 0.02, 0
    names = Dataset.from_tensor_slices([f"{server.url}/{number:03}.tar.gz" for number in range(4)])
    found = names.interleave(WebDataset, cycle_length=4, num_parallel_calls=dsnb.AUTOTUNE)
    assert sorted(keys(list(found))) == [f"{n:04}" for n in range(12)]
    assert server.most_at_once > 1
