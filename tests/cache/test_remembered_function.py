from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

import dsnb
from dsnb.cache.results.folder_hash import hash_folder
from dsnb.cache.results.model_storage import ModelStorage, Resource
from dsnb.cache.results.remembered_function import close_default_caches, default_cache, remembered
from dsnb.cache.results.training import LocalTrainingCache
from dsnb.errors import CacheWarning, DataLossError, DsnbWarning, FailedPreconditionError, InvalidArgumentError
from tests.cache.cells import Cells
from tests.cache.steps import Output, results
from tests.support.fingerprints import local_modules
from tests.support.processes import PythonProcess

Open = Callable[..., LocalTrainingCache]


@pytest.fixture
def cells(open_cache: Open) -> Cells:
    """A kernel with a cache; `ran` counts what is computed."""
    return Cells(dsnb=dsnb, np=np, cache=open_cache(), ran=[].append, remembered=remembered)


class Counter:
    """Counts calls, and has no state that a fingerprint would see."""

    def __init__(self) -> None:
        self.calls = 0

    def __dsnb_fingerprint__(self) -> Any:
        return "a counter"

    def __call__(self) -> None:
        self.calls += 1


TRAIN = """
def scale(x):
    return x * 3

@remembered(cache=cache)
def train(lr, data=None):
    ran()
    return scale(lr)
"""


def counted(cells: Cells, source: str) -> Counter:
    cells.names["ran"] = ran = Counter()
    cells.run(source)
    return ran


def test_an_unchanged_call_is_not_computed_again(cells: Cells) -> None:
    ran = counted(cells, TRAIN)
    assert [cells.train(2), cells.train(2), cells.train(lr=2)] == [6, 6, 6]
    assert ran.calls == 1


def test_nor_after_its_cell_was_run_again_or_laid_out_anew(cells: Cells) -> None:
    ran = counted(cells, TRAIN)
    cells.train(2)
    cells.run("# a comment\n\n" + TRAIN.replace("ran()", "ran()  # counts\n"))
    assert cells.train(2) == 6
    assert ran.calls == 1


CHANGES = {
    "the function": ("return scale(lr)", "return scale(lr) + 0"),
    "what it calls": ("return x * 3", "return x * 4"),
    "a default": ("data=None", "data=0"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_edit_computes_it_again(cells: Cells, change: str) -> None:
    ran = counted(cells, TRAIN)
    cells.train(2)
    cells.run(TRAIN.replace(*CHANGES[change]))
    cells.train(2)
    assert ran.calls == 2
    cells.run(TRAIN)  # and back
    cells.train(2)
    assert ran.calls == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "first, second",
    [
        (1, 2), (1, 1.0), (1, True), (0.0, -0.0), ("a", b"a"), ([1, 2], (1, 2)), ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (np.arange(4), np.arange(4.0)), (np.arange(4), np.arange(4).reshape(2, 2)), (np.zeros(2), np.array([0.0, 1])),
    ],
    ids=str,
)  # fmt: skip
def test_another_argument_computes_it_again(cells: Cells, first: Any, second: Any) -> None:
    ran = counted(cells, TRAIN)
    for value in (first, second, first, second):
        cells.train(2, value)
    assert ran.calls == 2


def test_datasets_count_by_their_pipelines(cells: Cells) -> None:
    ran = counted(cells, "FACTOR = 3\n@remembered(cache=cache)\ndef total(ds):\n    ran()\n    return int(sum(ds))\n")
    made = "ds = dsnb.Dataset.range(5).map(lambda x: x * FACTOR)"
    for _ in range(2):
        cells.run(made)
        assert cells.total(cells.ds) == 30
    assert ran.calls == 1
    cells.run("FACTOR = 4\n" + made)
    assert cells.total(cells.ds) == 40
    assert cells.total.explain().reasons == ("argument ds[2] > function > global FACTOR: 3 is now 4",)


def test_7_helper_modules_files_environment_and_packages_count(
    cells: Cells, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data.csv"
    data.write_text("1")
    monkeypatch.setenv("DSNB_TEST_MODE", "a")
    cells.names["data"] = str(data)
    with local_modules(tmp_path) as write:
        write("fingerprint_helper", "def double(x):\n    return x * 2\n")
        ran = counted(
            cells,
            "import fingerprint_helper\n"
            "@remembered(cache=cache, files=[data], env=['DSNB_TEST_MODE'], packages=['xxhash'])\n"
            "def train(x):\n    ran()\n    return fingerprint_helper.double(x)\n",
        )
        cells.train(1)
        cells.train(1)
        assert ran.calls == 1
        told = []
        for change in (
            lambda: setattr(sys.modules["fingerprint_helper"], "double", lambda x: x * 3),
            lambda: data.write_text("2"),
            data.unlink,
            lambda: monkeypatch.setenv("DSNB_TEST_MODE", "b"),
            lambda: monkeypatch.setattr("dsnb.cache.results.key.package_of", lambda name: (name, "99.0")),
        ):
            change()
            cells.train(1)
            told.append(cells.train.explain().reasons[0])
    assert ran.calls == 6
    assert told[1].startswith(f"file {data}: changed")
    assert told[2] == f"file {data}: there is now not there"
    assert told[3] == "environment variable DSNB_TEST_MODE: 'a' is now 'b'"
    assert told[4].endswith("is now 99.0")


def test_ignored_arguments_and_the_version_do_as_they_say(cells: Cells) -> None:
    source = (
        "@remembered(cache=cache, ignore=['verbose'], version=1)\ndef train(x, verbose):\n    ran()\n    return x\n"
    )
    ran = counted(cells, source)
    cells.train(1, verbose=True)
    cells.train(1, verbose=open)
    assert ran.calls == 1
    cells.run(source.replace("version=1", "version=2"))
    cells.train(1, verbose=True)
    assert ran.calls == 2
    assert cells.train.explain().reasons == ("version: 1 is now 2",)


def test_what_it_printed_is_shown_again_as_from_the_cache(cells: Cells, capsys: pytest.CaptureFixture[str]) -> None:
    cells.run(
        "import sys\n@remembered(cache=cache)\ndef train(lr):\n"
        "    print('epoch', 1)\n    print('careful', file=sys.stderr)\n    print('epoch', 2)\n"
    )
    assert cells.train(0.5) is None
    assert capsys.readouterr() == ("epoch 1\nepoch 2\n", "careful\n")
    assert cells.train(0.5) is None
    assert capsys.readouterr() == ("train(lr=0.5), from the cache:\nepoch 1\nepoch 2\n", "careful\n")
    assert cells.train.explain().hit


def test_what_it_printed_need_not_be_shown_again(cells: Cells, capsys: pytest.CaptureFixture[str]) -> None:
    source = "@remembered(cache=cache, replay_output=False)\ndef train(lr):\n    print('epoch', 1)\n    return lr\n"
    cells.run(source)
    assert cells.train(0.5) == 0.5
    assert capsys.readouterr().out == "epoch 1\n"
    assert cells.train(0.5) == 0.5
    assert capsys.readouterr().out == ""
    cells.run(source.replace("False", "True"))  # it is kept, and does not count
    assert cells.train(0.5) == 0.5
    assert capsys.readouterr().out == "train(lr=0.5), from the cache:\nepoch 1\n"


def test_9_results_that_are_false_are_results(cells: Cells) -> None:
    ran = counted(cells, "@remembered(cache=cache)\ndef give(x):\n    ran()\n    return VALUES[x]\nVALUES = None\n")
    values = [None, 0, 0.0, "", b"", False, [], (), {}, set(), np.zeros(0), np.int64(0)]
    cells.names["VALUES"] = values
    for _ in range(2):
        for number, value in enumerate(values):
            found = cells.give(number)
            assert type(found) is type(value)
            assert np.array_equal(found, value) if isinstance(value, np.ndarray) else found == value
    assert ran.calls == len(values)


@pytest.mark.slow
def test_another_process_finds_what_this_one_stored(tmp_path: Path) -> None:
    code = (
        "import numpy as np, dsnb\nSIZES = {3, 5, 8}\n"
        "@dsnb.cache.remembered\ndef train(lr):\n    print('computed')\n    return np.full(3, lr) * max(SIZES)\n"
        "print(train(2.0))\n"
    )
    told = []
    for seed in ("1", "2"):
        env = {"DSNB_CACHE_DIRECTORY": str(tmp_path / "cache"), "PYTHONHASHSEED": seed}
        with PythonProcess(["-c", code], env=env) as process:
            assert process.wait_for_exit(timeout=60) == 0, process.describe()
            told.append(process.stdout)
    assert told == [
        "computed\n[16. 16. 16.]\n",
        "train(lr=2.0), from the cache:\ncomputed\n[16. 16. 16.]\n",
    ]


def test_a_remembered_function_may_call_itself_and_others(cells: Cells) -> None:
    source = """
@remembered(cache=cache)
def fib(n):
    ran()
    return n if n < 2 else fib(n - 1) + fib(n - 2)

@remembered(cache=cache)
def twice(n):
    return 2 * fib(n)
"""
    ran = counted(cells, source)
    assert cells.twice(10) == 110
    assert ran.calls == 11
    cells.run(source.replace("n < 2", "n < 1 + 1.0"))
    assert cells.twice(10) == 110
    (reason,) = cells.twice.explain().reasons
    assert reason == (
        "twice > global fib, line 4: `return n if n < 2 else fib(n - 1) + fib(n - 2)` is now "
        "`return n if n < 1 + 1.0 else fib(n - 1) + fib(n - 2)`"
    )


def test_methods_are_remembered_by_what_they_are_bound_to(cells: Cells) -> None:
    ran = counted(
        cells,
        "class Model:\n    def __init__(self, size):\n        self.size = size\n"
        "    @remembered(cache=cache)\n    def fit(self, x):\n        ran()\n        return self.size * x\n",
    )
    small, large = cells.Model(2), cells.Model(3)
    assert [small.fit(5), large.fit(5), cells.Model(2).fit(5)] == [10, 15, 10]
    assert ran.calls == 2


def test_a_remembered_function_travels_and_finds_its_cache_again(cells: Cells) -> None:
    ran = counted(cells, TRAIN)
    assert cells.train(2) == 6
    there = cloudpickle.loads(cloudpickle.dumps(cells.train))
    assert there(2) == 6
    assert ran.calls == 1
    assert there.explain().hit
    there.cache.close()


def test_an_error_is_raised_and_not_remembered(cells: Cells) -> None:
    ran = counted(cells, "@remembered(cache=cache)\ndef fail():\n    ran()\n    raise KeyError('no')\n")
    for _ in range(2):
        with pytest.raises(KeyError):
            cells.fail()
    assert ran.calls == 2


def test_what_writes_itself_is_stored_in_its_own_form(open_cache: Open, tmp_path: Path) -> None:
    cache, storage = open_cache(), ModelStorage(tmp_path / "model")
    calls = []

    @remembered(cache=cache, model_storage=storage, ignore=["note"])
    def train(name: str, note: Any) -> Any:
        note(name)
        with storage.write_to(Resource(name=name)) as directory:
            (directory / "weights").write_text("w")
        return {"model": Resource(name=name, output_fingerprint="f"), "other": [Output("a")]}

    train("m", calls.append)
    (storage.directory / "m" / "weights").unlink()
    made = {"model": Resource(name="m", output_fingerprint="f"), "other": [Output("a")]}
    assert train("m", calls.append) == made
    assert (storage.directory / "m" / "weights").read_text() == "w"
    assert calls == ["m"]


# ------------------------------------------------------------------------------------------------------------ bad input


def test_a_result_without_a_form_is_returned_and_named_and_not_kept(cells: Cells) -> None:
    ran = counted(cells, "@remembered(cache=cache)\ndef make():\n    ran()\n    return {'a': [1, lambda x: x]}\n")
    for _ in range(2):
        with pytest.warns(
            DsnbWarning, match=r"the result at \['a'\]\[1\] is a function, which cannot be stored without pickle"
        ):
            assert cells.make()["a"][0] == 1
    assert ran.calls == 2
    assert "it was called before, but the result at ['a'][1] is a function" in str(cells.make.explain())


def test_pickles_are_made_and_read_only_where_they_are_allowed(cells: Cells) -> None:
    source = "@remembered(cache=cache, pickles=True)\ndef make():\n    ran()\n    return {'a': lambda x: x + 1}\n"
    ran = counted(cells, source)
    assert [cells.make()["a"](1), cells.make()["a"](1)] == [2, 2]
    assert ran.calls == 1
    cells.run(source.replace("pickles=True", "pickles=False"))
    with pytest.warns(CacheWarning) as warned:
        cells.make()
    assert "pickles are not allowed" in str(warned[0].message)
    assert "cannot be stored without pickle" in str(warned[1].message)
    assert ran.calls == 2


def test_what_cannot_be_pickled_is_returned_and_named(cells: Cells) -> None:
    cells.run("import threading\n@remembered(cache=cache, pickles=True)\ndef make():\n    return [threading.Lock()]\n")
    with pytest.warns(DsnbWarning, match=r"the result at \[0\] is a _thread.lock, which cannot be pickled"):
        cells.make()


def test_a_result_larger_than_the_cache_is_returned_and_said(open_cache: Open) -> None:
    cache = open_cache(max_size=0.1)

    @remembered(cache=cache)
    def make(size: int) -> Any:
        return np.zeros(size, np.uint8)

    make(1000)
    with pytest.warns(DsnbWarning, match="larger than the cache"):
        assert make(1_000_000).nbytes == 1_000_000
    assert make.explain(1000).hit
    assert not make.explain(1_000_000).hit


def test_what_has_no_value_is_refused_before_anything_runs(cells: Cells, tmp_path: Path) -> None:
    ran = counted(cells, "@remembered(cache=cache)\ndef read(file):\n    ran()\n")
    with (tmp_path / "f").open("w") as file, pytest.raises(InvalidArgumentError, match="argument file") as error:
        cells.read(file)
    assert "an open file" in error.value.what
    assert ran.calls == 0
    cells.run("RNG = np.random.default_rng(0)\n@remembered(cache=cache)\ndef draw():\n    return RNG.random()\n")
    with pytest.raises(InvalidArgumentError, match=r"global RNG.*pass a seed"):
        cells.draw()


def test_a_call_that_changes_its_own_key_is_not_kept_and_said(cells: Cells) -> None:
    ran = counted(
        cells, "@remembered(cache=cache)\ndef train(config):\n    ran()\n    config['seen'] = 1\n    return 1\n"
    )
    with pytest.warns(DsnbWarning, match=r"changed what its result follows from: argument config: \{\} is now"):
        cells.train({})
    with pytest.warns(DsnbWarning, match="changed what its result follows from"):
        cells.train({})
    assert ran.calls == 2


class Evil:
    def __reduce_ex__(self, protocol: Any) -> Any:
        raise RuntimeError("not to be looked at")


def test_whatever_keeps_a_result_from_being_kept_it_is_returned(cells: Cells) -> None:
    cells.names["evil"] = Evil()
    cells.run("@remembered(cache=cache, pickles=True)\ndef give(x):\n    return [Evil()]\n")
    cells.names["Evil"] = Evil
    with pytest.warns(DsnbWarning, match="not to be looked at"):
        assert type(cells.give(1)[0]) is Evil


def test_a_database_that_is_damaged_meanwhile_does_not_keep_a_function_from_running(
    cells: Cells, caplog: pytest.LogCaptureFixture
) -> None:
    cells.run(TRAIN.replace("ran()", "pass"))
    cells.train(1)
    cells.cache.close()
    (cells.cache.directory / "cache.db").write_bytes(b"no database at all" * 1000)
    with pytest.warns(DsnbWarning, match="not a database"):
        assert cells.train(1) == 3
    with pytest.raises(DataLossError, match="not a database"):
        cells.train.explain(1)


def test_what_is_no_function_to_remember_is_refused() -> None:
    def generate() -> Any:
        yield 1

    for wrong in (7, int, generate, staticmethod(_f), classmethod(_f), max):
        with pytest.raises(InvalidArgumentError):
            remembered(wrong)
    with pytest.raises(InvalidArgumentError, match="which f does not take"):
        remembered(ignore=["b"])(eval("f", {}, {"f": _f}))
    with pytest.raises(InvalidArgumentError, match="not installed"):
        remembered(packages=["no_such_package_anywhere"])


def _f(a: int) -> int:
    return a


_f.__qualname__ = "f"


def test_a_full_disk_costs_the_result_nothing(cells: Cells, tmp_path: Path) -> None:
    cells.run(TRAIN.replace("ran()", "pass"))
    for path in (tmp_path / "cache").iterdir():
        path.unlink()
    with pytest.warns(DsnbWarning, match=r"the result of train\(lr=2\) is not kept: the database .* was removed"):
        assert cells.train(2) == 6


def test_a_cache_that_cannot_be_opened_is_said_and_the_function_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("DSNB_CACHE_DIRECTORY", str(tmp_path / "file" / "cache"))

    @remembered
    def give(x: int) -> int:
        return x

    with pytest.warns(DsnbWarning, match="give is computed each time"):
        assert give(1) == 1


MAKE = """
@remembered(cache=cache, pickles=True)
def make():
    ran()
    print("made")
    return {"a": np.arange(300), "b": [1.5, "text", b"bytes"], "c": {1, 2}, "d": Unknown(3)}
class Unknown:
    def __init__(self, x):
        self.x = x
    def __eq__(self, other):
        return self.x == other.x
"""


def kept_files(cells: Cells) -> list[Path]:
    (folder,) = (path for path in results(cells.cache) if path.is_dir())
    return sorted(path for path in folder.rglob("*") if path.is_file())


def flip(path: Path, place: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(place * (len(data) - 1))] ^= 1 << 4
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "a bit at the start": lambda path: flip(path, 0.0),
    "a bit in the middle": lambda path: flip(path, 0.5),
    "a bit at the end": lambda path: flip(path, 1.0),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "emptied": lambda path: path.write_bytes(b""),
    "grown": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "removed": lambda path: path.unlink(),
    "under another name": lambda path: path.rename(path.with_name("other")),
    "of another kind": lambda path: path.write_bytes(b"\x80\x04K\x07."),  # a pickle of the number 7
    "another's": lambda path: path.write_text('["int", "0x7"]'),
}


@pytest.mark.slow
@pytest.mark.parametrize("file", ["arrays.npy", "outputs.json", "0", "result.json"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_result_is_computed_again_with_a_warning(cells: Cells, damage: str, file: str) -> None:
    ran = counted(cells, MAKE)
    made = cells.make()
    (path,) = (path for path in kept_files(cells) if path.name == file)
    DAMAGES[damage](path)
    with pytest.warns(CacheWarning, match=r"the result of make\(\) could not be read from the cache, and is computed"):
        again = cells.make()
    assert ran.calls == 2
    assert np.array_equal(again.pop("a"), made.pop("a"))
    assert again == made
    cells.make()
    assert ran.calls == 2, "it is whole again"


def test_a_result_that_was_written_by_another_serializer_is_computed_again(cells: Cells) -> None:
    ran = counted(cells, TRAIN)
    cells.train(2)
    (file,) = (path for path in kept_files(cells) if path.name == "result.json")
    file.write_text('["some kind of later versions", 7]')
    with cells.cache.store.reading() as index, index.database.transaction():  # as if it had been written so
        folder = file.parent
        index.database.execute(
            "UPDATE result SET digest = ? WHERE location = ?", hash_folder(str(folder)).digest, folder.name
        )
    with pytest.warns(CacheWarning, match="could not be read from the cache"):
        assert cells.train(2) == 6
    assert ran.calls == 2


def test_with_size_0_functions_just_run(open_cache: Open, tmp_path: Path) -> None:
    calls = []

    @remembered(cache=open_cache(max_size=0))
    def give(x: int) -> int:
        calls.append(x)
        return x

    assert [give(1), give(1)] == [1, 1]
    assert calls == [1, 1]
    assert not give.explain(1).hit


# ------------------------------------------------------------------------------------------------------------ the rest


def test_forget_drops_all_that_a_function_left(cells: Cells) -> None:
    ran = counted(cells, TRAIN)
    cells.train(1)
    cells.train(2)
    cells.train.forget()
    assert results(cells.cache) == []
    cells.train(2)
    assert ran.calls == 3


def test_explaining_before_the_first_call_says_so(cells: Cells) -> None:
    cells.run(TRAIN)
    with pytest.raises(FailedPreconditionError, match="train has not been called here yet"):
        cells.train.explain()


def test_the_usual_cache_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DSNB_CACHE_DIRECTORY", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = default_cache()
    assert first.directory == tmp_path / "dsnb" / "training"
    assert default_cache() is first
    monkeypatch.setenv("DSNB_CACHE_DIRECTORY", str(tmp_path / "other"))
    assert default_cache().directory == tmp_path / "other"
    close_default_caches()


def test_threads_may_call_one_function_at_once_and_each_hears_itself(
    open_cache: Open, capsys: pytest.CaptureFixture[str]
) -> None:
    meet = threading.Barrier(4, timeout=30)

    @remembered(cache=open_cache(), ignore=["wait"])
    def train(number: int, wait: Any) -> int:
        print("before", number)  # noqa: T201
        wait()
        print("after", number)  # noqa: T201
        return number

    threads = [threading.Thread(target=train, args=(number, meet.wait)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    capsys.readouterr()
    for number in range(4):
        assert train(number, None) == number
        assert capsys.readouterr().out == f"train(number={number}), from the cache:\nbefore {number}\nafter {number}\n"


def test_warnings_of_remembered_point_at_the_user_s_line(cells: Cells) -> None:
    cells.run("@remembered(cache=cache)\ndef make():\n    return lambda: 0\n")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cells.make()
    assert [os.path.basename(warning.filename) for warning in caught] == ["test_remembered_function.py"]
