"""Any part that differs makes another fingerprint: code, values, modules, libraries."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsnb.code.fingerprint.fingerprint import fingerprint
from dsnb.code.library_names import package_of
from dsnb.elements.spec import TensorSpec
from tests.support.fingerprints import Write, digest, local_modules, run_cell


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Write]:
    with local_modules(tmp_path) as write:
        yield write


# -------------------------------------------------------------------------------------------- another for another thing


ENUM = "import enum\nclass E(enum.Enum):\n A = 1\n B = 2\n"
DATACLASS = "from dataclasses import *\n@dataclass\nclass A:\n"
NAMED = "from collections import namedtuple\nP = namedtuple('P', 'x y')\n"
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
    (f"{ENUM}f = E.A", f"{ENUM}f = E.B"),
    (f"{DATACLASS} k: int = 1\nf = A", f"{DATACLASS} k: int = 2\nf = A"),
    (f"{DATACLASS} k: int = 1\nf = A", f"{DATACLASS} j: int = 1\nf = A"),
    ("from functools import *\nf = partial(max, 1)", "from functools import *\nf = partial(max, 2)"),
    ("from functools import *\nf = partial(max, key=abs)", "from functools import *\nf = partial(max, key=len)"),
    ("f = 'ab'.join", "f = 'ac'.join"),
    ("f = [1].append", "f = [2].append"),
    (f"{NAMED}f = P(1, 2)", f"{NAMED}f = P(1, 3)"),
    ("from collections import *\nf = OrderedDict(a=1)", "f = dict(a=1)"),
    ("import datetime\nf = datetime.date(2020, 1, 1)", "import datetime\nf = datetime.date(2020, 1, 2)"),
    ("from math import sin as g\ndef f(x): return g(x)", "from math import cos as g\ndef f(x): return g(x)"),
    ("from numpy import sin as g\ndef f(x): return g(x)", "from numpy import cos as g\ndef f(x): return g(x)"),
    ("from numpy import mean as g\ndef f(x): return g(x)", "from numpy import median as g\ndef f(x): return g(x)"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("one, other", PAIRS_OF_CELLS, ids=map(str, range(len(PAIRS_OF_CELLS))))
def test_any_part_that_differs_makes_another_fingerprint(one: str, other: str) -> None:
    assert digest(run_cell(one)) == digest(run_cell(one))
    assert digest(run_cell(one)) != digest(run_cell(other))


PAIRS_OF_VALUES = [
    (np.zeros(4), np.array([0, 0, 0, 1e-300])),
    (np.zeros(4, np.int32), np.zeros(4, np.uint32)),
    (np.zeros(4, "<i4"), np.zeros(4, ">i4")),
    (np.zeros((2, 3)), np.zeros((3, 2))),
    (np.array([0.0]), np.array([-0.0])),
    (np.float32(1), np.float64(1)),
    (np.float64(1), 1.0),
    (np.array(["a", None], object), np.array(["b", None], object)),
    (np.ma.array([1, 2], mask=[False, True]), np.ma.array([1, 2], mask=[True, False])),
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


def test_a_function_that_a_librarys_decorator_made_is_known_by_the_function_inside(local: Write) -> None:
    """`functools.wraps` gives the wrapper the name of what it wraps; by that name alone every edit would be missed."""
    source = "from contextlib import contextmanager\n@contextmanager\ndef f(): yield {}\n"
    module = local("fingerprint_wrapped", source.format(1))
    before = digest(module.f)
    assert digest(run_cell(source.format(1))) == before
    exec(source.format(2), vars(module))
    assert digest(module.f) == digest(run_cell(source.format(2))) != before


def test_a_dataclass_counts_by_its_fields_and_not_by_the_methods_written_for_it() -> None:
    first, second = (fingerprint(run_cell(f"{DATACLASS} k: int = {k}\nf = A")) for k in (1, 2))
    assert first.difference(second) == "pipeline, .k: 1 against 2"
    assert not [part.path for part in first.components if "__init__" in part.path or "__repr__" in part.path]


@pytest.mark.slow
def test_mutual_recursion_and_a_chain_of_helpers_of_any_length_are_walked() -> None:
    chain = "".join(f"def g{n}(x): return g{n + 1}(x)\n" for n in range(3000))
    one = run_cell(chain + "def g3000(x): return g0(x)\ndef f(x): return g0(x)")
    other = run_cell(chain + "def g3000(x): return g1(x)\ndef f(x): return g0(x)")
    assert digest(one) != digest(other)


def test_what_is_far_away_in_a_cycle_of_functions_counts() -> None:
    ring = [f"def g{n}(x): return g{(n + 1) % 40}(x) + {n}\n" for n in range(40)]
    one = run_cell("".join(ring), "g0")
    other = run_cell("".join([*ring[:20], ring[20].replace("+ 20", "- 20"), *ring[21:]]), "g0")
    assert digest(one) == digest(run_cell("".join(ring), "g0"))
    assert digest(one) != digest(other)


@pytest.mark.slow
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
        for nested in (one, same, other):
            tree: Any = nested
            while isinstance(tree, list):  # freed level by level: the interpreter's own way is recursive
                (tree,) = tree


def test_a_method_counts_with_what_it_is_bound_to() -> None:
    made = run_cell("class A:\n def __init__(s, k): s.k = k\n def g(s, x): return s.k\nf = A(1).g, A(1).g, A(2).g")
    first, same, other = map(digest, made)
    assert first == same != other


def test_a_wrapped_function_counts_by_what_it_wraps() -> None:
    source = "import functools\n@functools.lru_cache\ndef f(x): return x + {}"
    assert digest(run_cell(source.format(1))) == digest(run_cell(source.format(1)))
    assert digest(run_cell(source.format(1))) != digest(run_cell(source.format(2)))
    assert digest(functools.lru_cache(max)) != digest(functools.lru_cache(min))


# ------------------------------------------------------------------------------------------------ modules of the user's


def test_the_name_of_a_global_is_not_enough_where_two_modules_have_it(local: Write) -> None:
    one = local("fingerprint_one", "K = 1\ndef f(x): return K\n")
    two = local("fingerprint_two", "K = 2\ndef f(x): return K\n")
    both = digest([one.f, two.f])
    two.K = 1
    assert digest([one.f, two.f]) != both


@pytest.mark.parametrize(
    "use",
    ["import fingerprint_m\ndef f(x): return fingerprint_m.g(x)", "from fingerprint_m import g\ndef f(x): return g(x)"],
    ids=["module", "name"],
)
def test_an_edit_of_a_module_is_seen_once_it_is_what_runs(local: Write, use: str) -> None:
    module = local("fingerprint_m", "K = 1\ndef g(x): return h(x)\ndef h(x): return x\n")
    before = digest(run_cell(use))
    source = Path(module.__file__)
    source.write_text("K = 1\ndef g(x): return h(x)\ndef h(x): return -x\n")
    assert digest(run_cell(use)) == before  # what runs is still the old code
    exec(source.read_text(), vars(module))
    assert digest(run_cell(use)) != before


def test_of_a_module_only_what_is_asked_of_it_counts(local: Write) -> None:
    module = local("fingerprint_m", "A = 1\nB = 1\n")
    function = run_cell("import fingerprint_m as m\ndef f(x): return m.A + x.B")
    before = digest(function)
    module.B = 2
    assert digest(function) == before
    module.A = 2
    assert digest(function) != before


def test_a_module_that_is_used_as_a_value_counts_whole(local: Write) -> None:
    module = local("fingerprint_m", "A = 1\ndef g(): return 1\n")
    function = run_cell("import fingerprint_m as m\ndef f(x): return getattr(m, x)")
    before = digest(function)
    module.A = 2
    assert digest(function) != before


def test_a_module_imported_inside_a_function_counts_by_its_file_with_what_that_imports(
    local: Write,
) -> None:
    local("fingerprint_deep", "import fingerprint_far\nK = 1\n", imported=False)
    local("fingerprint_far", "import fingerprint_deep\nK = 1  # one\n", imported=False)
    function = run_cell("def f(x):\n    from fingerprint_deep import K\n    return K\n")
    before = digest(function)
    function(1)
    assert digest(function) == before  # whether it is imported now makes no difference
    local("fingerprint_far", "import fingerprint_deep\nK = 1  # only a comment\n", imported=False)
    assert digest(function) == before
    local("fingerprint_far", "import fingerprint_deep\nK = 2\n", imported=False)
    assert digest(function) != before


# ------------------------------------------------------------------------------------------------------------ libraries


def test_a_library_counts_by_name_and_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "fingerprint_library.py").write_text("__version__ = '1.0'\nK = 1\ndef g(x): return K\n")
    monkeypatch.syspath_prepend(str(library))
    module: Any = __import__("fingerprint_library")
    try:
        function = run_cell("import fingerprint_library as m\ndef f(x): return m.g(x)")
        before = fingerprint(function)
        module.K = 2
        assert digest(function) == before.digest
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
