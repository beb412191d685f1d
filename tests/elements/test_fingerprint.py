"""One digest for one thing in every process; another one, and words for it, as soon as any part differs."""

from __future__ import annotations

import functools
import json
import logging
import os
import random
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

import dsnb.errors
from dsnb.elements.fingerprint import Fingerprint, fingerprint
from dsnb.elements.spec import TensorSpec
from dsnb.pipeline.operation import Operation

ROOT = str(Path(dsnb.errors.__file__).parent.parent)


def cell(source: str, name: str = "f", **given: Any) -> Any:
    """What running a cell leaves under `name`."""
    namespace: dict[str, Any] = {"__name__": "__main__", **given}
    exec(compile(source, "<cell>", "exec"), namespace)
    return namespace[name]


def digest(value: Any) -> str:
    found = fingerprint(value)
    assert not found.unhashable, found.unhashable
    return found.digest


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

IN_ANOTHER_PROCESS = """
import json, sys
source, name = sys.argv[1:]
exec(compile(source, name, "exec"))
from dsnb.elements.fingerprint import fingerprint
found = fingerprint(f)
print(json.dumps([found.digest, [[c.path, c.kind, c.digest, c.detail] for c in found.components], found.unhashable]))
"""


def in_another_process(source: str, name: str, seed: str, tmp_path: Path) -> list[Any]:
    done = subprocess.run(
        [sys.executable, "-c", IN_ANOTHER_PROCESS, source, name], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": ROOT, "PYTHONHASHSEED": seed}, cwd=tmp_path,
    )  # fmt: skip
    assert not done.returncode, done.stderr
    found: list[Any] = json.loads(done.stdout)
    return found


def test_two_kernels_with_other_hash_seeds_find_one_fingerprint_part_by_part(tmp_path: Path) -> None:
    first = in_another_process(CELL, "<cell 1>", "1", tmp_path)
    second = in_another_process("\n# moved\n\n" + CELL, "<cell 2>", "2", tmp_path)
    assert first == second
    assert not first[2]
    here = fingerprint(cell(CELL))
    assert here.digest == first[0], here.difference(_as_fingerprint(first))


def _as_fingerprint(found: list[Any]) -> Fingerprint:
    from dsnb.elements.fingerprint import Component

    return Fingerprint(found[0], tuple(Component(*part) for part in found[1]), tuple(found[2]))


def test_running_a_cell_again_makes_the_same_fingerprint() -> None:
    assert digest(cell(CELL)) == digest(cell(CELL))


def test_using_a_function_does_not_change_its_fingerprint() -> None:
    function = cell(
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
    cloudpickle.loads(cloudpickle.dumps(function))
    sys.settrace(lambda *_: None)
    try:
        function(1)
    finally:
        sys.settrace(None)
    assert digest(function) == before


def test_a_copy_by_value_has_the_fingerprint_of_the_original() -> None:
    """As a worker has it."""
    everything = cell(CELL)
    assert digest(cloudpickle.loads(cloudpickle.dumps(everything[0]))) == digest(everything[0])


def test_a_cell_a_module_and_a_script_have_one_fingerprint(tmp_path: Path, local: Callable[..., Any]) -> None:
    source = "import numpy as np\nK = 3\ndef g(x): return np.sin(x) * K\ndef f(x): return g(x) + 1\n"
    module = local("fingerprint_module", source)
    assert digest(module.f) == digest(cell(source)) == in_another_process(source, "script.py", "0", tmp_path)[0]


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
    assert digest(cell(changed)) == digest(cell("def f(x):\n    return [x, 'a', None, 1]\n"))


def test_docstrings_and_lines_of_classes_inside_a_function_do_not_matter() -> None:
    body = "def f(x):\n    class A:\n        {}\n        y = 2\n        def g(self):\n            {}\n            return 3\n    return A\n"
    assert digest(cell(body.format("'one'", "'two'"))) == digest(cell("\n\n" + body.format("'three'", "'four'")))


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


# --------------------------------------------------------------------------------------------- another for another thing


PAIRS_OF_CELLS = [
    ("def f(x): return x + 1", "def f(x): return x + 2"),
    ("def f(x): return x + 1", "def f(x): return x + 1.0"),
    ("def f(x): return x + 1", "def f(x): return x + True"),
    ("def f(x): return 0.0", "def f(x): return -0.0"),
    ("def f(x): return x in {'a', 'b'}", "def f(x): return x in {'a', 'c'}"),
    ("def f(x): return x.real", "def f(x): return x.imag"),
    ("def f(x, n=1): return n", "def f(x, n=2): return n"),
    ("def f(x, *, n=1): return n", "def f(x, *, n=2): return n"),
    ("def f(x, n=None): return n", "def f(x, n=(None,)): return n"),
    ("def f(x): return lambda: x", "def f(x): return lambda: (x,)"),
    ("def f(x):\n try: return x\n except KeyError: pass", "def f(x):\n try: return x\n except ValueError: pass"),
    ("def f(x): return (1, (2, 3))", "def f(x): return (1, 2, 3)"),
    ("def f(x): return x", "async def f(x): return x"),
    ("def f(x): return ((((((((1,),),),),),),),)", "def f(x): return ((((((((2,),),),),),),),)"),
    ("K = 1\ndef f(x): return K", "K = 2\ndef f(x): return K"),
    ("K = 1\ndef f(x): return [K for _ in x]", "K = 2\ndef f(x): return [K for _ in x]"),
    ("K = 1\ndef f(x): return lambda: K", "K = 2\ndef f(x): return lambda: K"),
    ("K = {'a': 1, 'b': 2}\ndef f(x): return K", "K = {'b': 2, 'a': 1}\ndef f(x): return K"),
    ("K = [1, 2]\ndef f(x): return K", "K = (1, 2)\ndef f(x): return K"),
    ("K = ['ab', 'c']\ndef f(x): return K", "K = ['a', 'bc']\ndef f(x): return K"),
    ("K = b'a'\ndef f(x): return K", "K = 'a'\ndef f(x): return K"),
    ("def h(x): return x\ndef g(x): return h(x)\ndef f(x): return g(x)",
     "def h(x): return -x\ndef g(x): return h(x)\ndef f(x): return g(x)"),
    ("def f(x): return len(x)", "def len(x): return 1\ndef f(x): return len(x)"),
    ("def m(k): return lambda x: x * k\nf = m(1)", "def m(k): return lambda x: x * k\nf = m(2)"),
    ("class A:\n k = 1\ndef f(x): return A", "class A:\n k = 2\ndef f(x): return A"),
    ("class B: pass\nclass A(B): pass\ndef f(x): return A", "class B:\n k = 2\nclass A(B): pass\ndef f(x): return A"),
    ("class A:\n def __init__(s): s.k = 1\nf = A()", "class A:\n def __init__(s): s.k = 1\nf = A(); f.k = 2"),
    ("class A:\n @property\n def p(s): return 1\nf = A()", "class A:\n @property\n def p(s): return 2\nf = A()"),
    ("class A:\n __slots__ = 'k',\n def __init__(s, k): s.k = k\nf = A(1)",
     "class A:\n __slots__ = 'k',\n def __init__(s, k): s.k = k\nf = A(2)"),
    ("import enum\nclass E(enum.Enum):\n A = 1\n B = 2\nf = E.A", "import enum\nclass E(enum.Enum):\n A = 1\n B = 2\nf = E.B"),
    ("from dataclasses import *\n@dataclass\nclass A:\n k: int = 1\nf = A", "from dataclasses import *\n@dataclass\nclass A:\n k: int = 2\nf = A"),
    ("from functools import *\nf = partial(max, 1)", "from functools import *\nf = partial(max, 2)"),
    ("from functools import *\nf = partial(max, key=abs)", "from functools import *\nf = partial(max, key=len)"),
    ("f = 'ab'.join", "f = 'ac'.join"),
    ("f = [1].append", "f = [2].append"),
    ("from collections import *\nf = namedtuple('P', 'x y')(1, 2)", "from collections import *\nf = namedtuple('P', 'x y')(1, 3)"),
    ("from collections import *\nf = OrderedDict(a=1)", "f = dict(a=1)"),
    ("import datetime\nf = datetime.date(2020, 1, 1)", "import datetime\nf = datetime.date(2020, 1, 2)"),
    ("from math import sin as g\ndef f(x): return g(x)", "from math import cos as g\ndef f(x): return g(x)"),
    ("from numpy import sin as g\ndef f(x): return g(x)", "from numpy import cos as g\ndef f(x): return g(x)"),
    ("from numpy import mean as g\ndef f(x): return g(x)", "from numpy import median as g\ndef f(x): return g(x)"),
]  # fmt: skip


@pytest.mark.parametrize("one, other", PAIRS_OF_CELLS, ids=map(str, range(len(PAIRS_OF_CELLS))))
def test_any_part_that_differs_makes_another_fingerprint(one: str, other: str) -> None:
    assert digest(cell(one)) == digest(cell(one))
    assert digest(cell(one)) != digest(cell(other))


PAIRS_OF_VALUES = [
    (np.zeros(4), np.array([0, 0, 0, 1e-300])),
    (np.zeros(4, np.int32), np.zeros(4, np.uint32)),
    (np.zeros(4, "<i4"), np.zeros(4, ">i4")),
    (np.zeros((2, 3)), np.zeros((3, 2))),
    (np.array([0.0]), np.array([-0.0])),
    (np.float32(1), np.float64(1)),
    (np.float64(1), 1.0),
    (np.array(["a", None], object), np.array(["b", None], object)),
    (np.ma.array([1, 2], mask=[0, 1]), np.ma.array([1, 2], mask=[1, 0])),
    (np.dtype("i4"), np.dtype("i8")),
    (bytearray(b"a"), b"a"),
    (TensorSpec((3,), np.float32), TensorSpec((4,), np.float32)),
    (TensorSpec((3,), np.float32), TensorSpec((3,), np.float64)),
    (Path("a"), Path("b")),
    (range(3), range(4)),
    (slice(3), slice(4)),
    ({"a"}, frozenset({"a"})),
    (float("nan"), float("inf")),
    (10**5000, 10**5000 + 1),
]


@pytest.mark.parametrize("one, other", PAIRS_OF_VALUES, ids=map(str, range(len(PAIRS_OF_VALUES))))
def test_values_that_differ_in_anything_have_other_fingerprints(one: Any, other: Any) -> None:
    assert digest(one) != digest(other)


def test_a_function_that_a_librarys_decorator_made_is_known_by_the_function_inside() -> None:
    """`functools.wraps` gives the wrapper the name of what it wraps; by that name alone every edit would be missed."""
    source = "from contextlib import contextmanager\n@contextmanager\ndef f(): yield {}\n"
    assert digest(cell(source.format(1))) == digest(cell(source.format(1)))
    assert digest(cell(source.format(1))) != digest(cell(source.format(2)))
    module = types.ModuleType("fingerprint_wrapped")
    exec(source.format(1), vars(module))
    assert digest(module.f) != digest(cell(source.format(2)))


def test_the_name_of_a_global_is_not_enough_where_two_modules_have_it(local: Callable[..., Any]) -> None:
    one = local("fingerprint_one", "K = 1\ndef f(x): return K\n")
    two = local("fingerprint_two", "K = 2\ndef f(x): return K\n")
    both = digest([one.f, two.f])
    two.K = 1
    assert digest([one.f, two.f]) != both


def test_mutual_recursion_and_a_chain_of_helpers_of_any_length_are_walked() -> None:
    chain = "".join(f"def g{n}(x): return g{n + 1}(x)\n" for n in range(3000))
    one = cell(chain + "def g3000(x): return g0(x)\ndef f(x): return g0(x)")
    other = cell(chain + "def g3000(x): return g1(x)\ndef f(x): return g0(x)")
    assert digest(one) != digest(other)


def test_data_of_any_depth_is_walked() -> None:
    def nest(value: Any) -> list[Any]:
        for _ in range(20_000):
            value = [value]
        nested: list[Any] = value
        return nested

    one, same, other = nest(1), nest(1), nest(2)
    try:
        assert digest(one) == digest(same) != digest(other)
    finally:
        for tree in (one, same, other):
            while isinstance(tree, list) and tree:  # freed level by level
                (tree,) = tree


# -------------------------------------------------------------------------------------------------- modules of the user's


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Writes a module into a folder on the path, and imports it unless told otherwise."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(name: str, source: str, *, imported: bool = True) -> Any:
        (tmp_path / f"{name}.py").write_text(source)
        return __import__(name) if imported else None

    yield write
    for name in [name for name in sys.modules if name.startswith("fingerprint_")]:
        del sys.modules[name]


@pytest.mark.parametrize("use", ["import fingerprint_m\ndef f(x): return fingerprint_m.g(x)", "from fingerprint_m import g\ndef f(x): return g(x)"], ids=["module", "name"])
def test_an_edit_of_a_module_is_seen_once_it_is_what_runs(local: Callable[..., Any], use: str) -> None:
    module = local("fingerprint_m", "K = 1\ndef g(x): return h(x)\ndef h(x): return x\n")
    before = digest(cell(use))
    source = Path(module.__file__)
    source.write_text("K = 1\ndef g(x): return h(x)\ndef h(x): return -x\n")
    assert digest(cell(use)) == before  # what runs is still the old code
    exec(source.read_text(), vars(module))
    assert digest(cell(use)) != before


def test_of_a_module_only_what_is_asked_of_it_counts(local: Callable[..., Any]) -> None:
    module = local("fingerprint_m", "A = 1\nB = 1\n")
    function = cell("import fingerprint_m as m\ndef f(x): return m.A + x.B")
    before = digest(function)
    module.B = 2
    assert digest(function) == before
    module.A = 2
    assert digest(function) != before


def test_a_module_that_is_used_as_a_value_counts_whole(local: Callable[..., Any]) -> None:
    module = local("fingerprint_m", "A = 1\ndef g(): return 1\n")
    function = cell("import fingerprint_m as m\ndef f(x): return getattr(m, x)")
    before = digest(function)
    module.A = 2
    assert digest(function) != before


def test_a_module_imported_inside_a_function_counts_by_its_file_with_what_that_imports(local: Callable[..., Any]) -> None:
    local("fingerprint_deep", "import fingerprint_far\nK = 1\n", imported=False)
    local("fingerprint_far", "import fingerprint_deep\nK = 1  # one\n", imported=False)
    function = cell("def f(x):\n    from fingerprint_deep import K\n    return K\n")
    before = digest(function)
    function(1)
    assert digest(function) == before  # whether it is imported now makes no difference
    local("fingerprint_far", "import fingerprint_deep\nK = 1  # only a comment\n", imported=False)
    assert digest(function) == before
    local("fingerprint_far", "import fingerprint_deep\nK = 2\n", imported=False)
    assert digest(function) != before


# ------------------------------------------------------------------------------------------------------------- libraries


def test_a_library_counts_by_name_and_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "fingerprint_library.py").write_text("__version__ = '1.0'\nK = 1\ndef g(x): return K\n")
    monkeypatch.syspath_prepend(str(library))
    module: Any = __import__("fingerprint_library")
    try:
        function = cell("import fingerprint_library as m\ndef f(x): return m.g(x)")
        before = fingerprint(function)
        module.K = 2
        assert digest(function) == before.digest
        from dsnb.elements.library import package_of

        package_of.cache_clear()
        module.__version__ = "1.1"
        after = fingerprint(function)
        assert before.difference(after) == "fingerprint_library: 1.0 against 1.1"
    finally:
        package_of.cache_clear()
        del sys.modules["fingerprint_library"]


def test_pythons_minor_version_is_part_of_it() -> None:
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert [part.detail for part in fingerprint(1).components if part.kind == "python"] == [here]


def test_dsnb_is_a_library_though_it_runs_from_a_checkout() -> None:
    parts = fingerprint(TensorSpec((3,), np.float32)).components
    assert [part.detail for part in parts if part.kind == "library"] == ["dsnb.elements.spec.TensorSpec"]
    assert "dsnb" in [part.path for part in parts if part.kind == "package"]


# --------------------------------------------------------------------------------------------------------------- honesty


@pytest.mark.parametrize(
    "make, problem",
    [
        (lambda: open(os.devnull), "an open file: pass its path"),
        (lambda: open(os.devnull, "rb"), "an open file: pass its path"),
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
        found = fingerprint(cell("def g(x): return thing\ndef f(x): return g(x)", thing=value))
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


@pytest.mark.parametrize("make", [threading.Lock, threading.RLock, threading.Event, lambda: logging.getLogger("a")], ids=["lock", "rlock", "event", "logger"])
def test_locks_events_and_loggers_count_by_their_class(make: Callable[[], Any]) -> None:
    used = make()
    if hasattr(used, "acquire"):
        used.acquire()
    assert digest(used) == digest(make())
    assert digest(used) != digest(object())


def test_an_object_may_say_what_it_is() -> None:
    class Tokens:
        def __init__(self, name: str) -> None:
            self.name, self.open = name, open(os.devnull)

        def __dsnb_fingerprint__(self) -> Any:
            return self.name

    tokens = [Tokens("a"), Tokens("a"), Tokens("b")]
    first, same, other = map(digest, tokens)
    for each in tokens:
        each.open.close()
    assert first == same != other


def test_an_object_that_fails_to_say_what_it_is_is_listed() -> None:
    class Broken:
        def __dsnb_fingerprint__(self) -> Any:
            raise LookupError("gone")

    assert "its __dsnb_fingerprint__ raised LookupError: gone" in fingerprint(Broken()).unhashable[0]


# ----------------------------------------------------------------------------------------------------- differences, told


@dataclass(frozen=True, kw_only=True, eq=False)
class Source(Operation):
    size: int
    cached: list[int] = field(default_factory=list, compare=False)

    @property
    def name(self) -> str:
        return f"source({self.size})"


@dataclass(frozen=True, kw_only=True, eq=False)
class Map(Operation):
    function: Any

    @property
    def name(self) -> str:
        return f"map({self.function.__name__})"


def pipeline(function: Any, size: int = 3) -> Map:
    return Map(function=function, inputs=(Map(function=len, inputs=(Source(size=size),)),))


HELPERS = "K = 3.0\ndef helper(x): return x * K\ndef decode(x): return helper(x)"


@pytest.mark.parametrize(
    "other, text",
    [
        (HELPERS.replace("3.0", "4.0"), "map(decode), function, global helper, global K: 3.0 against 4.0"),
        (HELPERS.replace("x * K", "x / K"), "map(decode), function, global helper, code: its code differs (code of helper)"),
        (HELPERS.replace("3.0", "np.zeros(2)"), "map(decode), function, global helper, global K: 3.0 against float64 (2,)"),
        (HELPERS.replace("x * K", "x * K + L") + "\nL = 1", "map(decode), function, global helper: it differs (function helper)"),
    ],
    ids=["value", "code", "kind", "new dependency"],
)  # fmt: skip
def test_the_first_part_that_differs_is_named(other: str, text: str) -> None:
    first = fingerprint(pipeline(cell(HELPERS, "decode")))
    second = fingerprint(pipeline(cell(other, "decode", np=np)))
    assert first.difference(second) == text


def test_of_two_operations_the_one_nearer_to_the_source_is_named() -> None:
    first = fingerprint(pipeline(cell(HELPERS, "decode")))
    second = fingerprint(pipeline(cell(HELPERS.replace("3.0", "4.0"), "decode"), size=4))
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
    from dataclasses import replace

    here = fingerprint(cell(HELPERS, "decode"))
    parts = tuple(
        replace(part, digest="0", detail="3.99" if part.kind == "python" else part.detail) for part in here.components
    )
    there = replace(here, digest="0", components=parts)
    assert here.difference(there) == f"Python: 3.{sys.version_info.minor} against 3.99"


def test_fields_of_operations_that_equality_ignores_do_not_count() -> None:
    assert digest(Source(size=3, cached=[1])) == digest(Source(size=3))


def test_a_method_counts_with_what_it_is_bound_to() -> None:
    made = cell("class A:\n def __init__(s, k): s.k = k\n def g(s, x): return s.k\nf = A(1).g, A(1).g, A(2).g")
    first, same, other = map(digest, made)
    assert first == same != other


def test_a_wrapped_function_counts_by_what_it_wraps() -> None:
    source = "import functools\n@functools.lru_cache\ndef f(x): return x + {}"
    assert digest(cell(source.format(1))) == digest(cell(source.format(1)))
    assert digest(cell(source.format(1))) != digest(cell(source.format(2)))
    assert digest(functools.lru_cache(max)) != digest(functools.lru_cache(min))
