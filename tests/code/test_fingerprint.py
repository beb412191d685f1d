"""One digest for one thing in every process, honesty about what has none, and words for what differs."""

from __future__ import annotations

import copy
import importlib
import logging
import os
import random
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle as untyped_cloudpickle
import numpy as np
import pytest
from msgspec.structs import replace

from dsnb.code.fingerprint.fingerprint import fingerprint
from dsnb.pipeline.graph import serialise
from tests.support.fingerprints import (
    ROOT,
    Map,
    Source,
    Write,
    digest,
    fingerprint_in_other_process,
    local_modules,
    run_cell,
)

cloudpickle: Any = untyped_cloudpickle  # it has no annotations


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Write]:
    with local_modules(tmp_path) as write:
        yield write


# ------------------------------------------------------------------------------------------------ one key for one thing


CELL = """
import enum, functools, math
from dataclasses import dataclass, field
import numpy as np

SCALE, TABLE = 3.0, {"b": 1, "a": np.arange(4, dtype=np.float32)}
WORDS = {"one", "two", "three", "four", "five"}

class Color(enum.Enum):
    RED = "r"
    BLUE = "b"

@dataclass(frozen=True)
class Augment:
    angle: float = 1.5
    names: set = field(default_factory=lambda: {"x", "y", "z"})
    def __call__(self, x): return helper(x) * self.angle

def helper(x): return even(x) if x in {"p", "q", "r"} else np.sin(x) * SCALE + TABLE["b"]
def even(x): return x == 0 or odd(x - 1)
def odd(x): return x != 0 and even(x - 1)

def make(k):
    def inner(x, *, flag=True, **more):
        class Local:
            limit = k
        return [helper(y) for y in WORDS if y not in ("s", "t")], Local.limit, math.pi, Color.RED
    return inner

f = functools.partial(make(4), flag=False), Augment(), Color, {helper, even, (1, helper), frozenset(WORDS)}
"""


def test_two_kernels_with_other_hash_seeds_find_one_fingerprint_part_by_part(tmp_path: Path) -> None:
    first = fingerprint_in_other_process(CELL, "<cell 1>", "1", tmp_path)
    second = fingerprint_in_other_process("\n# moved\n\n" + CELL, "<cell 2>", "2", tmp_path)
    assert first == second
    assert not first.unhashable
    assert fingerprint(run_cell(CELL)).difference(first) == ""


def test_running_a_cell_again_makes_the_same_fingerprint() -> None:
    assert digest(run_cell(CELL)) == digest(run_cell(CELL))


def test_using_a_function_does_not_change_its_fingerprint() -> None:
    function = run_cell(
        "import functools\n"
        "class Model:\n"
        "    @functools.cached_property\n"
        "    def weights(self): return [1, 2]\n"
        "    def __call__(self, x): return self.weights[0] * x\n"
        "model = Model()\n"
        "@functools.lru_cache\n"
        "def table(x): return model(x)\n"
        "def f(x): return table(x) + 1\n"
    )
    before = digest(function)
    for number in range(2000):
        function(number)
    serialise(Map(function=function))
    sys.settrace(lambda *_: None)
    try:
        function(1)
    finally:
        sys.settrace(None)
    assert digest(function) == before


def test_copying_an_instance_does_not_change_the_fingerprint_of_its_class() -> None:
    """Python notes the names of the slots in the class as it does so."""
    made = run_cell("class A: pass\nf = A")
    before = digest(made)
    copy.copy(made())
    assert digest(made) == before


def test_a_copy_by_value_has_the_fingerprint_of_the_original() -> None:
    """As a worker has it."""
    everything = run_cell(CELL)
    assert digest(cloudpickle.loads(cloudpickle.dumps(everything[0]))) == digest(everything[0])


@pytest.mark.parametrize(
    "changed",
    [
        "\n\n\ndef f(x):\n    return [x, 'a', None, 1]\n",
        "def f(x):\n    'what it does'\n    return [x, 'a', None, 1]\n",
        "def f(x: int) -> list:\n    return [x, 'a', None, 1]  # a comment\n",
        "from __future__ import annotations\ndef f(x):\n    return [\n        x,\n        'a', None, 1]\n",
        "def g(x):\n    return [x, 'a', None, 1]\nf = g\n",
        "size = 3\ndef f(x):\n    return [x, 'a', None, 1]\nunrelated = 5\n",
    ],
    ids=["moved", "docstring", "annotated", "laid out", "renamed", "other names beside"],
)
def test_what_does_not_change_the_code_does_not_change_the_fingerprint(changed: str) -> None:
    assert digest(run_cell(changed)) == digest(run_cell("def f(x):\n    return [x, 'a', None, 1]\n"))


def test_docstrings_and_lines_of_classes_inside_a_function_do_not_matter() -> None:
    body = "def f(x):\n class A:\n  {}\n  y = 2\n  def g(self):\n   {}\n   return 3\n return A\n"
    assert digest(run_cell(body.format("'one'", "'two'"))) == digest(
        run_cell("\n\n" + body.format("'three'", "'four'"))
    )


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the syntax is newer")
def test_type_parameters_do_not_matter() -> None:
    plain = "class f{}:\n def g{}(self, x):\n  return x\n"
    assert digest(run_cell(plain.format("", "[U]"))) == digest(run_cell(plain.format("", "[V]")))
    assert digest(run_cell(plain.format("[T]", "")))


def test_sharing_of_equal_values_does_not_matter() -> None:
    class Box:
        def __init__(self, value: Any) -> None:
            self.value = value

    def function(x: int) -> int:
        return x

    one = Box([function])
    assert digest([one, one]) == digest([one, Box([function])])
    assert digest([one, one]) != digest([one, Box([function, function])])


def test_the_strides_of_an_array_do_not_matter() -> None:
    array = np.arange(12.0).reshape(3, 4)
    assert digest(np.asfortranarray(array)) == digest(array) == digest(np.repeat(array, 2, axis=0)[::2])


def test_a_cell_a_module_and_a_script_have_one_fingerprint(tmp_path: Path, local: Write) -> None:
    source = "import numpy as np\nK = 3\ndef g(x): return np.sin(x) * K\ndef f(x):\n class A: pass\n return g(x), A\n"
    module = local("fingerprint_module", source)
    assert (
        digest(module.f)
        == digest(run_cell(source))
        == fingerprint_in_other_process(source, "script.py", "0", tmp_path).digest
    )


# -------------------------------------------------------------------------------------------------------------- honesty


@pytest.mark.parametrize(
    "make, problem",
    [
        (Path(os.devnull).open, "an open file: pass its path"),
        (lambda: Path(os.devnull).open("rb"), "an open file: pass its path"),  # noqa: SIM115 - closed below
        (socket.socket, "a connection: connect inside the function"),
        (lambda: (x for x in "ab"), "a generator cannot be begun again"),
        (lambda: np.random.default_rng(1), "pass a seed"),
        (lambda: np.random.RandomState(1), "pass a seed"),
        (lambda: random.Random(1), "pass a seed"),
        (threading.local, "it says of itself: cannot pickle"),
    ],
    ids=["text", "binary", "socket", "generator", "Generator", "RandomState", "Random", "local"],
)
def test_what_has_no_value_is_listed_with_its_path_and_reason(make: Callable[[], Any], problem: str) -> None:
    value = make()
    try:
        found = fingerprint(run_cell("def g(x): return thing\ndef f(x): return g(x)", thing=value))
    finally:
        if hasattr(value, "close"):
            value.close()
    (entry,) = found.unhashable
    assert entry.startswith("pipeline > global g > global thing (")
    assert problem in entry


def test_what_has_no_value_never_gets_a_random_key() -> None:
    """The digest of the rest stays, and the list says that it is no key."""
    one, two = (fingerprint([(x for x in "ab"), 1]) for _ in "ab")
    assert one == two
    assert one.unhashable
    assert fingerprint([(x for x in "ab"), 2]).digest != one.digest


def test_two_things_without_a_value_are_both_listed() -> None:
    assert len(fingerprint([(x for x in "a"), (x for x in "b")]).unhashable) == 2


@pytest.mark.parametrize(
    "make",
    [threading.Lock, threading.RLock, threading.Event, lambda: logging.getLogger("a")],
    ids=["lock", "rlock", "event", "logger"],
)
def test_locks_events_and_loggers_count_by_their_class(make: Callable[[], Any]) -> None:
    used = make()
    if hasattr(used, "acquire"):
        used.acquire()
    assert digest(used) == digest(make())
    assert digest(used) != digest(object())


def test_an_object_may_say_what_it_is() -> None:
    class Tokens:
        def __init__(self, name: str) -> None:
            self.name, self.words = name, (word for word in name)

        def __dsnb_fingerprint__(self) -> Any:
            return self.name

    tokens = [Tokens("a"), Tokens("a"), Tokens("b")]
    first, same, other = map(digest, tokens)
    assert first == same != other


def test_an_object_that_fails_to_say_what_it_is_is_listed() -> None:
    class Broken:
        def __dsnb_fingerprint__(self) -> Any:
            raise LookupError("gone")

    assert "its __dsnb_fingerprint__ raised LookupError: gone" in fingerprint(Broken()).unhashable[0]


# ---------------------------------------------------------------------------------------------------- differences, told


def pipeline(function: Any, size: int = 3) -> Map:
    return Map(function=function, inputs=(Map(function=len, inputs=(Source(size=size),)),))


HELPERS = "K = 3.0\ndef helper(x): return x * K\ndef decode(x): return helper(x)"


@pytest.mark.parametrize(
    "other, text",
    [
        (HELPERS.replace("3.0", "4.0"), "global helper, global K: 3.0 against 4.0"),
        (HELPERS.replace("x * K", "x / K"), "global helper, code: its code differs (code of helper)"),
        (HELPERS.replace("3.0", "np.zeros(2)"), "global helper, global K: 3.0 against float64 (2,)"),
        (f"L = 1\n{HELPERS}".replace("* K", "* L"), "global helper: what it refers to differs (function helper)"),
    ],
    ids=["value", "code", "kind", "new dependency"],
)  # fmt: skip
def test_the_first_part_that_differs_is_named(other: str, text: str) -> None:
    first = fingerprint(pipeline(run_cell(HELPERS, "decode")))
    second = fingerprint(pipeline(run_cell(other, "decode", np=np)))
    assert first.difference(second) == f"map(decode), function, {text}"


def test_of_two_operations_the_one_nearer_to_the_source_is_named() -> None:
    first = fingerprint(pipeline(run_cell(HELPERS, "decode")))
    second = fingerprint(pipeline(run_cell(HELPERS.replace("3.0", "4.0"), "decode"), size=4))
    assert first.difference(second) == "source(3), size: 3 against 4"


def test_an_operation_that_was_added_is_named() -> None:
    short = pipeline(max)
    longer = Map(function=min, inputs=(short,))
    assert fingerprint(short).difference(fingerprint(longer)) == "map(min): only the second has it (map(min))"
    assert fingerprint(longer).difference(fingerprint(short)) == "map(min): only the first has it (map(min))"


def test_the_contents_of_arrays_and_the_order_of_dicts_are_told_apart() -> None:
    first, second = (fingerprint({"x": value}) for value in (np.zeros(2), np.ones(2)))
    assert first.difference(second) == "pipeline, ['x']: its contents differ (float64 (2,))"
    first, second = fingerprint({"a": 1, "b": 2}), fingerprint({"b": 2, "a": 1})
    assert first.difference(second) == "pipeline: {'a': 1, 'b': 2} against {'b': 2, 'a': 1}"


def test_equal_fingerprints_differ_in_nothing() -> None:
    assert fingerprint(pipeline(max)).difference(fingerprint(pipeline(max))) == ""


def test_another_python_is_the_one_difference_that_is_told() -> None:
    here = fingerprint(run_cell(HELPERS, "decode"))
    parts = tuple(
        replace(part, digest="0", detail="3.99" if part.kind == "python" else part.detail) for part in here.components
    )
    there = replace(here, digest="0", components=parts)
    assert here.difference(there) == f"Python: 3.{sys.version_info.minor} against 3.99"


# ------------------------------------------------------------------------------------------ objects that say themselves


def test_a_pattern_counts_by_what_it_matches() -> None:
    """Its pickle is registered beside it; of itself it says that it cannot be pickled."""
    source = "import re\nR = re.compile({!r})\ndef f(x): return R.match(x)"
    assert digest(run_cell(source.format("a+"))) == digest(run_cell(source.format("a+")))
    assert digest(run_cell(source.format("a+"))) != digest(run_cell(source.format("a*")))


def test_a_function_that_dispatches_counts_by_its_handlers_and_not_by_its_use() -> None:
    source = "import functools\n@functools.singledispatch\ndef f(x): return 0\n@f.register\ndef _(x: int): return {}\n"
    function = run_cell(source.format(1))
    before = digest(function)
    assert function(3) == 1
    assert digest(function) == before == digest(run_cell(source.format(1)))
    assert digest(run_cell(source.format(2))) != before


UNSTEADY = """
class Tensor:
    def __init__(self, values): self.values = values
    {}
t = Tensor([1, 2])
def f(x): return t.values[x]
"""


@pytest.mark.parametrize(
    "account",
    [
        "def __getstate__(self): return {'values': self.values, 'storage': next(Tensor_counter)}",
        "def __reduce__(self): return Tensor, ([next(Tensor_counter)],)",
        "def __reduce_ex__(self, protocol): return Tensor, (self.values,), {'key': str(next(Tensor_counter))}",
        "def __dsnb_fingerprint__(self): return next(Tensor_counter)",
    ],
    ids=["state", "reduce", "reduce_ex", "fingerprint"],
)
def test_what_describes_itself_differently_each_time_has_no_value(account: str) -> None:
    """As objects do whose pickle holds an address or a time: a key made from that would be found by nobody."""
    function = run_cell(UNSTEADY.format(account), Tensor_counter=iter(range(10**6)))
    found = fingerprint(function)
    assert len(found.unhashable) >= 1
    assert "global t (it describes itself differently each time it is asked)" in found.unhashable[0]


def test_what_describes_itself_the_same_each_time_has_one() -> None:
    source = UNSTEADY.format("def __reduce__(self): return Tensor, (self.values,)")
    assert digest(run_cell(source)) == digest(run_cell(source))


COMPILED_MODULE = """
import sys
sys.path.insert(0, sys.argv[1])
from dsnb.code.fingerprint.fingerprint import fingerprint
import _xxhash
from _xxhash import xxh32_intdigest
Compiled = type("Compiled", (), {"__module__": "_xxhash"})

def by_attribute(): return _xxhash.xxh32_intdigest(b"a")
def by_name(): return xxh32_intdigest(b"a")
def by_class(): return Compiled()
def in_the_body():
    import _xxhash
    return _xxhash.xxh32_intdigest(b"a")

print(*(fingerprint(each).digest for each in (by_attribute, by_name, by_class, in_the_body)))
"""


@pytest.mark.slow
def test_a_compiled_module_beside_the_notebook_counts_by_its_file(tmp_path: Path) -> None:
    built_one = str(importlib.import_module("xxhash._xxhash").__file__)
    file = tmp_path / Path(built_one).name
    shutil.copyfile(built_one, file)

    def digests() -> list[str]:
        command = [sys.executable, "-c", COMPILED_MODULE, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, cwd=ROOT)
        return done.stdout.split()

    before = digests()
    assert digests() == before
    with file.open("ab") as built:
        built.write(b"built again")
    after = digests()
    assert len(before) == len(after) == 4
    assert set(before).isdisjoint(after)
