"""No result is used after something that it follows from has changed: files, helper modules, values of all kinds."""

from __future__ import annotations

import gzip
import importlib
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsnb
from dsnb.cache.opened_files import OpenedFiles, comparable_here, first_change
from dsnb.cache.results.remembered_function import remembered
from dsnb.cache.results.training import LocalTrainingCache
from dsnb.errors import CacheWarning
from tests.cache.cells import Cells
from tests.support.fingerprints import local_modules
from tests.support.marks import slow
from tests.support.processes import PythonProcess

Open = Callable[..., LocalTrainingCache]


@pytest.fixture
def cells(open_cache: Open, tmp_path: Path) -> Cells:
    """A kernel with a cache and a function over a dataset."""
    names: dict[str, Any] = {
        "dsnb": dsnb,
        "np": np,
        "cache": open_cache(),
        "remembered": remembered,
        "folder": tmp_path,
    }
    cells = Cells(**names)
    cells.run("@remembered(cache=cache)\ndef texts(ds):\n    return [str(line) for line in ds]\n")
    return cells


def lines(path: Path, *texts: str) -> Path:
    """Write a file of lines."""
    path.write_text("".join(text + "\n" for text in texts))
    return path


def changed_in_place(path: Path) -> None:
    lines(path, "new", "new")


def changed_to_the_same_length(path: Path) -> None:
    lines(path, "ONE", "two")


def changed_with_its_time_put_back(path: Path) -> None:
    before = path.stat()
    lines(path, "ONE", "two")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replaced_by_a_copy_with_its_times(path: Path) -> None:
    other = lines(path.with_name("other"), "ONE", "two")
    shutil.copystat(path, other)
    other.replace(path)


def led_elsewhere(path: Path) -> None:
    other = lines(path.with_name("other"), "ONE", "two")
    path.unlink()
    path.symlink_to(other)


CHANGES = [
    changed_in_place,
    changed_to_the_same_length,
    changed_with_its_time_put_back,
    replaced_by_a_copy_with_its_times,
    led_elsewhere,
]
PIPELINES = {
    "a source that names it": "dsnb.TextLineDataset(file)",
    "behind other operations": "dsnb.TextLineDataset(file).map(lambda x: x).prefetch(2)",
    "as an element, interleaved": "dsnb.Dataset.from_tensor_slices([file]).interleave(dsnb.TextLineDataset)",
    "as an element, in turn": "dsnb.Dataset.from_tensor_slices([file]).flat_map(dsnb.TextLineDataset)",
    "listed": "dsnb.Dataset.list_files(file).interleave(dsnb.TextLineDataset)",
    "on threads": "dsnb.Dataset.from_tensor_slices([file]).interleave(dsnb.TextLineDataset, num_parallel_calls=2)",
}


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_result_is_computed_again_when_a_file_that_its_dataset_reads_has_changed(
    cells: Cells, tmp_path: Path, pipeline: str, change: Callable[[Path], None]
) -> None:
    file = lines(tmp_path / "data.txt", "one", "two")
    cells.run(f"file = {str(file)!r}\ndef ds():\n    return {PIPELINES[pipeline]}\n")
    assert cells.texts(cells.ds()) == cells.texts(cells.ds()) == ["one", "two"]
    assert cells.texts.explain().hit
    change(file)
    assert not cells.texts.explain(cells.ds()).hit
    assert cells.texts(cells.ds()) == file.read_text().split()
    (reason,) = cells.texts.explain().reasons
    assert str(file) in reason
    assert cells.texts(cells.ds()) == file.read_text().split()
    assert cells.texts.explain().hit


HOLDERS = {
    "in a dict": ("def call():\n    return use({'train': [ds()]})", "given['train'][0]"),
    "in a closure": (
        "def make(captured):\n    return lambda: list(captured)\ndef call():\n    return use(make(ds()))", "given()"
    ),
    "in a global": ("GLOBAL = ds()\ndef call():\n    return use(1)", "GLOBAL"),
    "in a partial": ("import functools\ndef call():\n    return use(functools.partial(list, ds()))", "given()"),
    "in a default": ("def call():\n    return use(lambda x=ds(): x)", "given()"),
    "made in the function": ("def call():\n    return use(file)", "dsnb.TextLineDataset(given)"),
    "listed in the function": (
        "def call():\n    return use(file)", "dsnb.Dataset.list_files(given).flat_map(dsnb.TextLineDataset)"
    ),
}  # fmt: skip


@pytest.mark.parametrize("holder", HOLDERS)
def test_wherever_the_dataset_is(cells: Cells, tmp_path: Path, holder: str) -> None:
    file = lines(tmp_path / "data.txt", "one", "two")
    call, read = HOLDERS[holder]
    cells.run(
        f"file = {str(file)!r}\ndef ds():\n    return dsnb.TextLineDataset(file)\n"
        f"@remembered(cache=cache)\ndef use(given):\n    return [str(line) for line in {read}]\n{call}\n"
    )
    assert cells.call() == cells.call() == ["one", "two"]
    assert cells.use.explain().hit
    changed_to_the_same_length(file)
    assert cells.call() == ["ONE", "two"]


def test_an_iterator_that_is_made_in_the_function_and_read_on_a_thread_is_noted(cells: Cells, tmp_path: Path) -> None:
    file = lines(tmp_path / "data.txt", "one", "two")
    cells.run(
        "import threading\n@remembered(cache=cache)\ndef read(path):\n    found = []\n"
        "    elements = iter(dsnb.Dataset.from_tensor_slices([path]).interleave(dsnb.TextLineDataset))\n"
        "    thread = threading.Thread(target=lambda: found.extend(map(str, elements)))\n"
        "    thread.start()\n    thread.join()\n    return found\n"
    )
    assert cells.read(str(file)) == cells.read(str(file)) == ["one", "two"]
    assert cells.read.explain().hit
    changed_to_the_same_length(file)
    assert cells.read(str(file)) == ["ONE", "two"]


def test_a_compressed_file_counts_as_any(cells: Cells, tmp_path: Path) -> None:
    def write(text: str) -> None:
        with gzip.open(tmp_path / "data.gz", "wt") as file:
            file.write(text)

    for text in ("one\n", "two\n"):
        write(text)
        ds = dsnb.Dataset.from_tensor_slices([str(tmp_path / "data.gz")]).interleave(dsnb.TextLineDataset)
        assert cells.texts(ds) == [text.strip()]


def test_a_file_that_comes_to_be_or_goes_is_a_change(cells: Cells, tmp_path: Path) -> None:
    files = [str(lines(tmp_path / "a", "a")), str(tmp_path / "b")]
    cells.run(
        "@remembered(cache=cache)\ndef read(files):\n    found = []\n"
        "    for file in files:\n        try:\n            found += map(str, dsnb.TextLineDataset(file))\n"
        "        except FileNotFoundError:\n            found.append('none')\n    return found\n"
    )
    assert cells.read(files) == cells.read(files) == ["a", "none"]
    assert cells.read.explain().hit
    lines(tmp_path / "b", "b")
    assert cells.read(files) == ["a", "b"]
    assert cells.read.explain().reasons == (f"the file {tmp_path / 'b'} is new",)
    (tmp_path / "a").unlink()
    assert cells.read(files) == ["none", "b"]
    assert cells.read.explain().reasons == (f"the file {tmp_path / 'a'} is not there any more",)


def test_a_new_file_that_matches_a_pattern_is_a_change(cells: Cells, tmp_path: Path) -> None:
    lines(tmp_path / "1.txt", "one")
    cells.run(
        "@remembered(cache=cache)\ndef read(pattern):\n"
        "    files = dsnb.Dataset.list_files(pattern, shuffle=False)\n"
        "    return [str(x) for x in files.flat_map(dsnb.TextLineDataset)]\n"
    )
    pattern = str(tmp_path / "*.txt")
    assert cells.read(pattern) == cells.read(pattern) == ["one"]
    assert cells.read.explain().hit
    lines(tmp_path / "2.txt", "two")
    assert cells.read(pattern) == ["one", "two"]
    assert f"the files that match {pattern}: 1 are now 2" in cells.read.explain().reasons[0]


def test_a_pattern_that_a_function_of_the_pipeline_lists_counts_too(cells: Cells, tmp_path: Path) -> None:
    lines(tmp_path / "1.txt", "one")
    patterns = dsnb.Dataset.from_tensor_slices([str(tmp_path / "*.txt")])
    ds = patterns.flat_map(lambda x: dsnb.Dataset.list_files(str(x), shuffle=False)).flat_map(dsnb.TextLineDataset)
    assert cells.texts(ds) == cells.texts(ds) == ["one"]
    assert cells.texts.explain().hit
    lines(tmp_path / "2.txt", "two")
    assert cells.texts(ds) == ["one", "two"]


def test_files_that_a_call_makes_and_removes_itself_do_not_keep_it_from_being_remembered(
    cells: Cells, tmp_path: Path
) -> None:
    cells.run(
        "import os, uuid\n@remembered(cache=cache)\ndef count(n):\n    path = str(folder / uuid.uuid4().hex)\n"
        "    with open(path, 'w') as file:\n        file.write('x\\n' * n)\n"
        "    found = len(list(dsnb.TextLineDataset(path)))\n    os.unlink(path)\n    return found\n"
    )
    assert cells.count(3) == cells.count(3) == 3
    assert cells.count.explain().hit


def test_a_result_of_a_file_that_changes_while_it_is_read_is_not_kept(cells: Cells, tmp_path: Path) -> None:
    file = lines(tmp_path / "data.txt", "one", "two")
    cells.run(
        "@remembered(cache=cache)\ndef read(path):\n    ds = dsnb.Dataset.from_tensor_slices([path])\n"
        "    found = [str(x) for x in ds.interleave(dsnb.TextLineDataset)]\n"
        "    with open(path, 'a') as file:\n        file.write('three\\n')\n    return found\n"
    )
    with pytest.warns(CacheWarning, match="is not kept: the file .* changed while it was read"):
        assert cells.read(str(file)) == ["one", "two"]
    with pytest.warns(CacheWarning, match="is not kept"):
        assert cells.read(str(file)) == ["one", "two", "three"]


def test_a_remembered_function_depends_on_the_files_of_those_that_it_calls(cells: Cells, tmp_path: Path) -> None:
    file = str(lines(tmp_path / "data.txt", "one", "two"))
    cells.run(
        "@remembered(cache=cache)\ndef inner(ds):\n    return sum(1 for _ in ds)\n"
        "@remembered(cache=cache)\ndef opening(path):\n"
        "    return [str(x) for x in dsnb.Dataset.from_tensor_slices([path]).interleave(dsnb.TextLineDataset)]\n"
        "@remembered(cache=cache)\ndef outer(path):\n    return inner(dsnb.TextLineDataset(path)), opening(path)\n"
    )
    assert cells.inner(dsnb.TextLineDataset(file)) == 2
    assert cells.opening(file) == ["one", "two"]
    assert cells.outer(file) == cells.outer(file) == (2, ["one", "two"])  # of results that are there already
    assert cells.outer.explain().hit
    lines(Path(file), "1", "2", "3")
    assert cells.outer(file) == (3, ["1", "2", "3"])


def test_files_that_a_distributed_dataset_names_count(cells: Cells, tmp_path: Path) -> None:
    file = lines(tmp_path / "data.txt", "one", "two")
    with dsnb.start(workers=1) as service:
        ds = dsnb.TextLineDataset(str(file)).apply(dsnb.distribute("parallel_epochs", service))
        assert cells.texts(ds) == cells.texts(ds) == ["one", "two"]
        assert cells.texts.explain().hit
        changed_to_the_same_length(file)
        assert cells.texts(ds) == ["ONE", "two"]


TRANSFERS = {"local": ("thread", None), "shared memory": ("process", None), "gRPC": ("process", "grpc")}
OPENED = {
    "interleaved": "dsnb.Dataset.from_tensor_slices([file]).interleave(dsnb.TextLineDataset)",
    "in a map function": (
        "dsnb.Dataset.from_tensor_slices([file]).map(lambda x: [str(y) for y in dsnb.TextLineDataset(str(x))][0])"
    ),
    "listed on the worker": (
        "dsnb.Dataset.from_tensor_slices([file]).flat_map(lambda x: dsnb.Dataset.list_files(str(x)))"
        ".flat_map(dsnb.TextLineDataset)"
    ),
    "recorded by the workers": (
        "dsnb.Dataset.from_tensor_slices([file]).flat_map(dsnb.TextLineDataset).cache(folder / 'recording')"
    ),
}
MODES = ["parallel_epochs", "distributed_epoch"]


@pytest.mark.parametrize("transfer", ["local", slow("shared memory"), slow("gRPC")])
def test_files_that_workers_open_count(cells: Cells, tmp_path: Path, transfer: str) -> None:
    file = lines(tmp_path / "data.txt", "one", "two")
    isolation, protocol = TRANSFERS[transfer]
    with dsnb.start(workers=1, isolation=isolation) as service:
        names = dsnb.Dataset.from_tensor_slices([str(file)])
        distribute = dsnb.distribute("parallel_epochs", service, data_transfer_protocol=protocol)
        ds = names.interleave(dsnb.TextLineDataset).apply(distribute)
        assert cells.texts(ds) == cells.texts(ds) == ["one", "two"]
        assert cells.texts.explain().hit
        changed_to_the_same_length(file)
        assert cells.texts(ds) == ["ONE", "two"]
        assert cells.texts.explain().reasons == (f"the file {file} has changed since it was read",)
        assert cells.texts(ds) == ["ONE", "two"]
        assert cells.texts.explain().hit


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the file .* has changed since it was read")  # of the workers' recording
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("pipeline", OPENED)
def test_however_workers_come_to_open_them(cells: Cells, tmp_path: Path, pipeline: str, mode: str) -> None:
    file = lines(tmp_path / "data.txt", "one", "two")
    cells.run(f"file = {str(file)!r}\ndef ds():\n    return {OPENED[pipeline]}\n")
    with dsnb.start(workers=1) as service:
        ds = cells.ds().apply(dsnb.distribute(mode, service))
        before = cells.texts(ds)
        assert cells.texts(ds) == before
        assert cells.texts.explain().hit
        changed_to_the_same_length(file)
        assert cells.texts(ds)[0] == "ONE"


def test_a_rank_depends_on_the_files_that_workers_open(cells: Cells, tmp_path: Path) -> None:
    file = lines(tmp_path / "data.txt", "one", "two")
    cells.run("@remembered(cache=cache, ignore=['ds'])\ndef read(ds):\n    return [str(line) for line in ds]\n")

    def rank(job: str) -> dsnb.Dataset:
        names = dsnb.Dataset.from_tensor_slices([str(file)])
        distribute = dsnb.distribute("parallel_epochs", service, job_name=job, consumer_index=0, num_consumers=1)
        return names.interleave(dsnb.TextLineDataset).apply(distribute)

    with dsnb.start(workers=1) as service:
        assert cells.read(rank("a")) == cells.read(rank("b")) == ["one", "two"]
        assert cells.read.explain().hit
        changed_to_the_same_length(file)
        assert cells.read(rank("c")) == ["ONE", "two"]


def test_a_trainer_that_reads_from_the_cross_trainer_cache_depends_on_the_files_of_all(
    cells: Cells, tmp_path: Path
) -> None:
    file = lines(tmp_path / "data.txt", "one", "two")

    def trainer(name: str) -> dsnb.Dataset:
        cache = dsnb.CrossTrainerCache(trainer_id=name, start="oldest")
        return names.apply(dsnb.distribute("parallel_epochs", service, job_name="shared", cross_trainer_cache=cache))

    with dsnb.start(workers=1) as service:
        names = dsnb.Dataset.from_tensor_slices([str(file)]).interleave(dsnb.TextLineDataset).repeat()
        with iter(trainer("first")) as first:
            next(first)  # opened the file, and goes on reading
            cells.run("@remembered(cache=cache, ignore=['ds'])\ndef one(ds):\n    return str(next(iter(ds)))\n")
            assert cells.one(trainer("second")) == "one"
            assert cells.one.explain(None).hit
            changed_to_the_same_length(file)
            assert cells.one.explain(None).reasons == (f"the file {file} has changed since it was read",)


def test_files_of_a_host_whose_files_this_one_does_not_have_are_no_grounds_to_remember(
    cells: Cells, tmp_path: Path
) -> None:
    file = str(tmp_path / "there")  # the worker's: here it never is when somebody looks

    def read_there(name: str) -> list[str]:
        lines(Path(file), "one")
        found = [str(line) for line in dsnb.TextLineDataset(name)]
        Path(file).unlink()
        return found

    with dsnb.start(workers=1) as service:
        ds = dsnb.Dataset.from_tensor_slices([file]).map(read_there).apply(dsnb.distribute("parallel_epochs", service))
        with pytest.warns(
            CacheWarning,
            match=f"(?s)is not kept: the file {file} is not as a worker .*on a file system that this host shares",
        ):
            cells.texts(ds)


def test_files_that_a_worker_reads_in_another_state_never_count_as_unchanged(tmp_path: Path) -> None:
    there, here = lines(tmp_path / "there", "one"), lines(tmp_path / "here", "one")
    noted = OpenedFiles()
    noted.add(str(there), there.stat())
    noted.add(str(here), here.stat())
    states = noted.states("strict")
    there.unlink()  # as on a host that does not have it
    told = OpenedFiles()
    told.add_from_worker(states)
    other = f"the file {there} is not as a worker read it: it has changed, or the worker's host has another"
    assert first_change(told.states("strict")) == other
    assert [path for _, path, _ in comparable_here(told.states("change"))] == [str(here)]
    lines(there, "one")  # as on a host with a copy of its own
    assert first_change(told.states("strict")) == other
    assert [path for _, path, _ in comparable_here(told.states("change"))] == [str(here), str(there)]


def test_a_worker_notes_only_so_many_files() -> None:
    noted = OpenedFiles(most=2)
    for name in ("/a", "/b", "/a", "/c"):
        noted.add(name, None)
    noted.add_url("file:///d", None)
    states = noted.take_states("strict")
    assert [name for _, name, _ in states] == ["/a", "/b", ""]
    assert first_change(states) == "a worker opened more than 20,000 files, too many to compare"
    assert noted.take_states("strict") == ()


def test_files_whose_contents_count_may_be_touched(cells: Cells, tmp_path: Path) -> None:
    file = lines(tmp_path / "data.txt", "one", "two")
    cells.run(
        f"@remembered(cache=cache, files=[{str(file)!r}])\ndef read(ds):\n    return [str(line) for line in ds]\n"
    )
    ds = dsnb.TextLineDataset(str(file))
    cells.read(ds)
    os.utime(file, (1, 1))
    assert cells.read.explain(ds).hit
    changed_to_the_same_length(file)
    assert cells.read(ds) == ["ONE", "two"]


def test_a_named_folder_counts_with_what_links_in_it_lead_to(cells: Cells, tmp_path: Path) -> None:
    lines(tmp_path / "outside", "one")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "data" / "loop").symlink_to(tmp_path / "data")
    cells.run(
        "@remembered(cache=cache, files=[folder / 'data'])\ndef read():\n"
        "    return (folder / 'data' / 'link').read_text()\n"
    )
    assert cells.read() == cells.read() == "one\n"
    assert cells.read.explain().hit
    lines(tmp_path / "outside", "two")
    assert cells.read() == "two\n"


def test_a_file_that_is_written_twice_in_one_tick_is_read_twice(cells: Cells, tmp_path: Path) -> None:
    file = tmp_path / "data.txt"
    cells.run(
        "path = folder / 'data.txt'\n@remembered(cache=cache, files=[path])\ndef read():\n    return path.read_text()\n"
    )
    for text in ("one", "two", "six"):
        file.write_text(text)
        os.utime(file, ns=(5, file.stat().st_ctime_ns))
        assert cells.read() == text


# ------------------------------------------------------------------------------------------------------------- datasets


SAME = [
    "rows().cache()",
    "rows().cache(folder / 'here')",
    "rows().cache(folder / 'there', limit_bytes=1 << 20, content=True)",
    "rows().prefetch(3)",
    "rows().prefetch(dsnb.AUTOTUNE).cache(folder / 'x').prefetch(1)",
    "dsnb.Dataset.range(5).prefetch(2).cache().map(double)",
    "dsnb.Dataset.range(5).map(double, num_parallel_calls=2)",
    "dsnb.Dataset.range(5).map(double, num_parallel_calls=dsnb.AUTOTUNE)",
    "rows().with_options(dsnb.Options(writable=True))",
]
OTHERS = [
    "rows().cache().map(double)",
    "rows().repeat(2)",
    "rows().prefetch(2).skip(1)",
    "dsnb.Dataset.range(6).map(double).cache()",
    "rows().shuffle(5, seed=1)",
]


def test_where_a_dataset_is_cached_and_how_it_is_prefetched_does_not_change_the_key(cells: Cells) -> None:
    cells.run(
        "def double(x):\n    return 2 * x\ndef rows():\n    return dsnb.Dataset.range(5).map(double)\n"
        "@remembered(cache=cache)\ndef total(ds):\n    return int(sum(ds))\n"
    )
    assert cells.total(eval("rows()", cells.names)) == 20
    assert [made for made in SAME if not cells.total.explain(eval(made, cells.names)).hit] == []
    assert [made for made in OTHERS if cells.total.explain(eval(made, cells.names)).hit] == []


def test_how_elements_travel_from_a_service_does_not_change_the_key(cells: Cells) -> None:
    with dsnb.start(workers=1) as service:
        ds = dsnb.Dataset.range(3)
        cells.names["plain"] = ds.apply(dsnb.distribute("parallel_epochs", service))
        cells.names["other"] = ds.apply(
            dsnb.distribute("parallel_epochs", service, compression=None, checksum=True, max_outstanding_requests=4)
        )
        cells.names["mode"] = ds.apply(dsnb.distribute("distributed_epoch", service))
        cells.texts(cells.plain)
        assert cells.texts.explain(cells.other).hit
        assert not cells.texts.explain(cells.mode).hit


# ------------------------------------------------------------------------------------------- values that a call reaches


VALUES = {
    "a global of a global's global": ("X = 1\ndef g(): return X\ndef h(): return g()", "h()", "X = 2"),
    "a default": ("def g(a=[1]): return a[0]", "g()", "g.__defaults__[0][0] = 2"),
    "a keyword's default": ("def g(*, a=1): return a", "g()", "g.__kwdefaults__['a'] = 2"),
    "an attribute of a class": ("class C:\n    a = 1", "C.a", "C.a = 2"),
    "an attribute of a base class": ("class B:\n    a = 1\nclass C(B): pass", "C().a", "B.a = 2"),
    "an attribute of a metaclass": ("class M(type):\n    a = 1\nclass C(metaclass=M): pass", "C.a", "M.a = 2"),
    "a slot": ("class C:\n    __slots__ = ('a',)\nc = C(); c.a = 1", "c.a", "c.a = 2"),
    "a property": ("class C:\n    p = property(lambda self: 1)\nc = C()", "c.p", "C.p = property(lambda self: 2)"),
    "a method that a method calls": (
        "class C:\n    def a(self): return self.b()\n    def b(self): return 1", "C().a()", "C.b = lambda self: 2"
    ),
    "a partial's argument": ("import functools\np = functools.partial(int, 1)", "p()", "p = functools.partial(int, 2)"),
    "a partial's keyword": (
        "import functools\np = functools.partial(dict, x=1)", "p()['x']", "p.keywords['x'] = 2"
    ),
    "a bound method's object": (
        "class C:\n    x = 0\n    def m(self): return self.x\nc = C(); c.x = 1; m = c.m", "m()", "c.x = 2"
    ),
    "what a closure shares": ("def make():\n    s = [1]\n    return s, lambda: s[0]\ns, g = make()", "g()", "s[0] = 2"),
    "an attribute of a function": ("def g(): return g.k\ng.k = 1", "g()", "g.k = 2"),
    "what a decorator adds": (
        "def add(n):\n    return lambda f: (lambda: f() + n)\ng = add(1)(lambda: 0)", "g()", "g = add(2)(lambda: 0)"
    ),
    "a callable object": (
        "class C:\n    def __call__(self): return self.v\nc = C(); c.v = 1", "c()", "c.v = 2"
    ),
    "an attribute of an array": (
        "class A(np.ndarray): pass\na = np.zeros(3).view(A); a.scale = 1", "a.scale", "a.scale = 2"
    ),
    "an array's content": ("a = np.zeros(3)", "float(a[0])", "a[0] = 2"),
    "a list in a dict": ("d = {'a': [1]}", "d['a'][0]", "d['a'][0] = 2"),
    "the order of a dict": ("d = {'a': 1, 'b': 2}", "list(d)[0]", "d['a'] = d.pop('a')"),
    "an attribute of a list": ("class L(list): pass\nl = L([1]); l.q = 1", "l.q", "l.q = 2"),
    "a field that is not compared": (
        "import dataclasses as d\n@d.dataclass\nclass C:\n    b: int = d.field(default=1, compare=False)\nc = C()",
        "c.b", "c.b = 2",
    ),
    "a registered function": (
        "import functools\n@functools.singledispatch\ndef g(x): return 1", "g(3)", "g.register(int)(lambda x: 2)"
    ),
    "a built-in that is shadowed": ("", "len([1])", "len = lambda x: 2"),
    "the environment, by the mapping": (
        "from os import environ\nenviron['DSNB_TEST_FRESH'] = '1'", "int(environ['DSNB_TEST_FRESH'])",
        "environ['DSNB_TEST_FRESH'] = '2'",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", VALUES)
def test_a_result_is_computed_again_when_a_value_that_the_function_reaches_has_changed(cells: Cells, kind: str) -> None:
    setup, expression, change = VALUES[kind]
    cells.run(f"{setup}\n@remembered(cache=cache)\ndef value():\n    return {expression}\n")
    try:
        before = cells.value()
        assert cells.value() == before
        assert cells.value.explain().hit
        cells.run(change)
        assert cells.value() != before, "the old result was used"
        assert cells.value.explain().reasons
    finally:
        os.environ.pop("DSNB_TEST_FRESH", None)


REFUSED = {
    "an open file": "open(__file__)",
    "a generator": "(x for x in [1])",
    "a generator of random numbers": "np.random.default_rng()",
    "a connection": "__import__('socket').socket()",
    "what belongs to a thread": "__import__('threading').local()",
    "what belongs to a context": "__import__('contextvars').ContextVar('c')",
    "a weak reference": "__import__('weakref').ref(C)",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_has_no_value_is_refused_with_the_way_to_it(cells: Cells, kind: str) -> None:
    cells.run(f"__file__ = {__file__!r}\nclass C: pass\nthing = {REFUSED[kind]}\n")
    cells.run("def inner(): return thing\n@remembered(cache=cache)\ndef value():\n    return inner() and 1\n")
    try:
        with pytest.raises(dsnb.errors.InvalidArgumentError, match="value > global inner > global thing") as refused:
            cells.value()
        assert refused.value.did == "it was not called"
    finally:
        close = getattr(cells.thing, "close", None)
        if close is not None:
            close()


# ------------------------------------------------------------------------------------------------------ helper modules


IMPORTING = """
@remembered(cache=cache)
def use():
    import fingerprint_fresh
    return fingerprint_fresh.prep(), list(map(int, fingerprint_fresh.TABLE))
"""
HELPER = "import numpy as np\nSCALE = 1\nTABLE = np.arange(2)\ndef prep():\n    return SCALE\n"


def fresh_kernel(folder: Path) -> str:
    """What the function gives in a new process."""
    code = (
        f"import sys; sys.path.insert(0, {str(folder)!r})\nimport dsnb\nfrom dsnb.cache import remembered\n"
        f"cache = dsnb.cache.LocalTrainingCache({str(folder / 'cache')!r})\n{IMPORTING}"
        "print(use(), use.explain().hit)\n"
    )
    with PythonProcess(["-c", code], env={"PYTHONDONTWRITEBYTECODE": ""}) as process:
        assert process.wait_for_exit(timeout=60) == 0, process.describe()
        return process.stdout.strip()


@pytest.fixture
def bytecode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let imports write bytecode, as they do unless told otherwise."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)


def test_importing_a_module_that_a_function_imports_changes_no_key(
    cells: Cells, tmp_path: Path, bytecode: None
) -> None:
    with local_modules(tmp_path) as write:
        (tmp_path / "fingerprint_fresh.py").write_text(HELPER)
        cells.run(IMPORTING)
        assert cells.use() == (1, [0, 1])
        cells.use()
        assert cells.use.explain().hit
        assert fresh_kernel(tmp_path) == "(1, [0, 1]) True"
        del write


EDITS = {
    "a function": ("return SCALE", "return SCALE * 10"),
    "a plain value": ("SCALE = 1", "SCALE = 7"),
    "a computed value": ("np.arange(2)", "np.arange(3)"),
}


@pytest.mark.slow
@pytest.mark.parametrize("edit", EDITS)
def test_a_module_that_was_edited_and_not_reloaded_leaves_no_old_result_under_the_new_source(
    cells: Cells, tmp_path: Path, bytecode: None, edit: str
) -> None:
    with local_modules(tmp_path):
        file = tmp_path / "fingerprint_fresh.py"
        file.write_text(HELPER)
        cells.run(IMPORTING)
        before = cells.use()
        file.write_text(HELPER.replace(*EDITS[edit]))
        os.utime(file, (time.time() + 10,) * 2)  # Python takes an edit in the same second for none
        assert cells.use() == before, "the module that is imported runs"
        text = fresh_kernel(tmp_path)
        assert text.endswith("False"), "the old module's result is not the new one's"
        assert text != f"{before} False"
        importlib.invalidate_caches()
        importlib.reload(sys.modules["fingerprint_fresh"])
        assert f"{cells.use()} False" == text
        assert cells.use.explain().hit


def test_values_that_were_set_in_an_imported_module_count(cells: Cells, tmp_path: Path) -> None:
    with local_modules(tmp_path):
        (tmp_path / "fingerprint_fresh.py").write_text(HELPER)
        cells.run(IMPORTING)
        assert cells.use()[0] == 1
        sys.modules["fingerprint_fresh"].SCALE = 5  # type: ignore[attr-defined]
        assert cells.use()[0] == 5
        sys.modules["fingerprint_fresh"].prep = lambda: 9  # type: ignore[attr-defined]
        assert cells.use()[0] == 9
