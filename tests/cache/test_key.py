from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsnb
from dsnb.cache.results.key import DeclaredInputs, KeyMaker, fingerprint
from dsnb.errors import InvalidArgumentError
from tests.support.processes import PythonProcess


def train(data: Any, rate: float = 0.1, *more: Any, verbose: bool = False, **options: Any) -> None:
    pass


def key(*args: Any, named: DeclaredInputs | None = None, **kwargs: Any) -> Any:
    return KeyMaker(train, named or DeclaredInputs()).key(args, kwargs)


def test_how_arguments_are_passed_does_not_count() -> None:
    first = key(1, 0.1, a=1, b=2)
    assert first.digest == key(1, b=2, a=1).digest == key(data=1, rate=0.1, verbose=False, b=2, a=1).digest
    assert len(first.digest) == 32


def test_each_argument_counts_by_its_name() -> None:
    keys = [
        key(1),
        key(2),
        key(1, 1),
        key(1, 0.1, 1),
        key(1, verbose=True),
        key(1, a=1),
        key(1, b=1),
        key([1]),
        key((1,)),
    ]
    assert len({found.digest for found in keys}) == len(keys)


def test_the_call_is_told_as_it_was_written() -> None:
    assert key(np.zeros((2, 3)), rate=0.5, a="x").call == "train(data=<float64 (2, 3)>, rate=0.5, options={'a': 'x'})"
    assert len(key("x" * 1000).call) < 100
    assert key(dsnb.Dataset.range(3)).call == "train(data=<Dataset>)"


def test_ignored_arguments_do_not_count_but_that_they_are_ignored_does() -> None:
    named = DeclaredInputs(ignore=("verbose",))
    assert key(1, verbose=True, named=named).digest == key(1, verbose=False, named=named).digest
    assert key(1, named=named).digest != key(1).digest


def test_files_count_by_their_contents_and_not_by_their_times(tmp_path: Path) -> None:
    path = tmp_path / "data"
    named = DeclaredInputs(files=(str(path),))
    missing = key(1, named=named).digest
    path.write_text("a")
    first = key(1, named=named).digest
    path.write_text("b")
    second = key(1, named=named).digest
    path.unlink()
    path.write_text("a")
    assert key(1, named=named).digest == first
    assert len({missing, first, second}) == 3
    path.unlink()
    path.mkdir()
    (path / "inside").write_text("a")
    folder = key(1, named=named).digest
    (path / "inside").write_text("b")
    assert key(1, named=named).digest not in {folder, first, missing}


def test_wrong_arguments_are_python_s_own_error() -> None:
    with pytest.raises(TypeError, match="missing a required argument: 'data'"):
        key()


# ------------------------------------------------------------------------------------------------------ for everybody


SCALE = 2


def _scaled(x: int) -> int:
    return x * SCALE


def test_a_fingerprint_is_text_and_the_same_for_the_same_values() -> None:
    found = fingerprint(_scaled, np.arange(3), {"lr": 0.1})
    assert isinstance(found, str)
    assert re.fullmatch("[0-9a-f]{32}", found)
    assert fingerprint(_scaled, np.arange(3), {"lr": 0.1}) == found


def test_a_fingerprint_differs_with_anything_that_a_result_follows_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "data.txt"
    file.write_text("a\n")

    def found() -> str:
        return fingerprint(_scaled, dsnb.TextLineDataset(str(file)), files=[file], env=["DSNB_TEST"], version=1)

    seen = [found(), fingerprint(_scaled), fingerprint(_scaled, 1), fingerprint(1, _scaled), fingerprint()]
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 3)
    seen.append(found())
    monkeypatch.setenv("DSNB_TEST", "x")
    seen.append(found())
    file.write_text("b\n")
    seen.append(found())
    assert len(set(seen)) == len(seen)


def test_a_fingerprint_does_not_differ_with_where_a_dataset_is_cached(tmp_path: Path) -> None:
    ds = dsnb.Dataset.range(5)
    assert fingerprint(ds) == fingerprint(ds.cache(tmp_path)) == fingerprint(ds.prefetch(3))


def test_a_dataset_s_file_counts_in_a_fingerprint(tmp_path: Path) -> None:
    file = tmp_path / "data.txt"
    file.write_text("a\n")
    before = fingerprint([dsnb.TextLineDataset(str(file))])
    file.write_text("bb\n")
    assert fingerprint([dsnb.TextLineDataset(str(file))]) != before


def test_what_has_no_fingerprint_is_refused_with_the_way_to_it(tmp_path: Path) -> None:
    with (tmp_path / "f").open("w") as file, pytest.raises(InvalidArgumentError) as refused:
        fingerprint(1, {"log": [file]})
    assert "value 2 > ['log'] > [0] (an open file: pass its path)" in refused.value.what
    with pytest.raises(InvalidArgumentError, match=r"`files` is 'data' \(str\), not a list\n.*pass a list of paths"):
        fingerprint(files="data")


def test_a_fingerprint_is_the_same_in_another_process() -> None:
    code = "import dsnb, numpy as np\ndef f(x):\n    return {x, 'a'}\nprint(dsnb.cache.fingerprint(f, np.arange(3)))\n"
    told = set()
    for seed in ("1", "2"):
        with PythonProcess(["-c", code], env={"PYTHONHASHSEED": seed}) as process:
            assert process.wait_for_exit(timeout=60) == 0, process.describe()
            told.add(process.stdout)
    assert len(told) == 1


def test_a_fingerprint_is_a_key_of_a_training_cache(tmp_path: Path) -> None:
    with dsnb.cache.LocalTrainingCache(tmp_path / "cache") as cache:
        storage = dsnb.cache.ModelStorage(tmp_path / "model")
        key = dsnb.cache.fingerprint(_scaled, 3)
        cache.cache_output(key, None, dsnb.cache.fingerprint(_scaled(3)), storage)
        assert cache.get_cached_output_fingerprint(dsnb.cache.fingerprint(_scaled, 3)) == dsnb.cache.fingerprint(6)
