"""Counts what a maintainer has to read: files, lines, classes, copies by hand, thin docstrings, private reads of tests.

python tools/count.py                  this checkout
python tools/count.py PATH...          other checkouts, one column for each
python tools/count.py --list docstrings    the places behind one figure

The figure `modules on the path of an element over gRPC` is measured: a service with one worker is read over gRPC, and
each module that runs functions on one of the four threads that handle elements counts once: the thread that runs the
pipeline, the handler that sends, the thread that receives, and the user's own. What runs fewer than ten times for
10,000 elements is done by the clock, and the more often the slower the machine: it does not count.
"""

from __future__ import annotations

import argparse
import ast
import collections
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
MIN_COPIES = 5  # keyword arguments `x=y.x` in one call
MIN_WORDS = 5  # of a docstring

Location = tuple[Path, int, str]
Function = ast.FunctionDef | ast.AsyncFunctionDef

# Runs in the checkout that is counted, so that its own package is imported.
TRACE = """
import collections, sys, threading
calls, on = collections.Counter(), False
wanted = ("MainThread", "dsnb-task-", "dsnb-worker-", "dsnb-read-")
def profile(frame, event, arg):
    if on and event == "call":
        name = frame.f_globals.get("__name__", "")
        if name.startswith("dsnb.") and threading.current_thread().name.startswith(wanted):
            calls[name] += 1
threading.setprofile(profile)
sys.setprofile(profile)
import numpy as np
import dsnb
with dsnb.start(workers=1, name="count") as service:
    data = dsnb.Dataset.range(200_000).map(lambda x: np.full(16, x))
    read = data.apply(dsnb.distribute("parallel_epochs", service, data_transfer_protocol="grpc"))
    iterator = iter(read)
    for number, _ in enumerate(iterator):
        on = 2_000 <= number
        if number == 12_000:
            break
    on = False
    sys.setprofile(None)
print("\\n".join(sorted(module for module, count in calls.items() if count >= 10)))
"""


def sources(root: Path, *folders: str) -> list[Path]:
    """Return the Python files of `folders` that people write, sorted."""
    found = [path for folder in folders for path in (root / folder).rglob("*.py")]
    return sorted(path for path in found if not path.stem.endswith("_pb2"))


def classes(root: Path) -> Iterator[Location]:
    """Yield each class of the package."""
    for path in sources(root, "dsnb"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                yield path, node.lineno, node.name


def repeated_classes(root: Path) -> Iterator[Location]:
    """Yield the module-level classes whose name another module uses as well, once for each name."""
    by_name = collections.defaultdict(list)
    for path in sources(root, "dsnb"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                by_name[node.name].append((path, node.lineno))
    for name, locations in sorted(by_name.items()):
        if len(locations) > 1:
            yield (*locations[0], f"{name}: {len(locations)} times")


def copies(root: Path) -> Iterator[Location]:
    """Yield the calls that hand over five or more fields of one object under their own names."""
    for path in sources(root, "dsnb"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            copied = collections.Counter(
                ast.unparse(keyword.value.value)
                for keyword in node.keywords
                if isinstance(keyword.value, ast.Attribute) and keyword.value.attr == keyword.arg
            )
            for source, count in copied.items():
                if count >= MIN_COPIES:
                    yield path, node.lineno, f"{ast.unparse(node.func)}: {count} fields of {source}"


def thin_docstrings(root: Path) -> Iterator[Location]:
    """Yield the functions whose docstring has fewer than five words and that override nothing."""
    inherited = _methods_of_bases(root)
    for path in sources(root, "dsnb"):
        tree = ast.parse(path.read_text())
        for owner, node in _functions(tree):
            text = ast.get_docstring(node)
            if text is None or len(text.split()) >= MIN_WORDS:
                continue
            if owner is not None and any(node.name in inherited[_base_name(base)] for base in owner.bases):
                continue
            yield path, node.lineno, f"{node.name}: {text!r}"


def _functions(tree: ast.Module) -> Iterator[tuple[ast.ClassDef | None, Function]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield from ((node, child) for child in node.body if isinstance(child, Function))
    methods = {id(child) for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for child in node.body}
    yield from ((None, node) for node in ast.walk(tree) if isinstance(node, Function) and id(node) not in methods)


def _base_name(base: ast.expr) -> str:
    text = ast.unparse(base).split("[")[0]
    return text.rsplit(".", 1)[-1]


def _methods_of_bases(root: Path) -> dict[str, set[str]]:
    """Return for each class name the methods that it or one of its bases defines, within the package."""
    own: dict[str, set[str]] = collections.defaultdict(set)
    bases: dict[str, set[str]] = collections.defaultdict(set)
    for path in sources(root, "dsnb"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                own[node.name] |= {child.name for child in node.body if isinstance(child, Function)}
                bases[node.name] |= {_base_name(base) for base in node.bases}
    for _ in range(len(own)):
        before = sum(map(len, own.values()))
        for name, parents in bases.items():
            for parent in parents:
                own[name] |= own.get(parent, set())
        if sum(map(len, own.values())) == before:
            break
    return own


# Public by the documentation of the standard library and of IPython, in spite of the underscore.
_DOCUMENTED = {"_asdict", "_current_frames", "_exit", "_make", "_replace", "_repr_html_", "_repr_mimebundle_"}


def private_reads(root: Path) -> Iterator[Location]:
    """Yield the places where a test touches a private attribute of an object other than itself."""
    for path in sources(root, "tests"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Attribute) or not re.match(r"_[^_]", node.attr):
                continue
            if node.attr in _DOCUMENTED or (isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}):
                continue
            yield path, node.lineno, ast.unparse(node)


def path_of_an_element(root: Path) -> list[str]:
    """Return the modules that run while elements travel over gRPC, measured on the checkout at `root`."""
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", TRACE],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    if done.returncode:
        missing = re.search(r"ModuleNotFoundError: No module named '([^']+)'", done.stderr)
        reason = (
            f"{sys.executable} has no package {missing[1]}. Run this with a Python in which dsnb is installed, such as "
            "that of the checkout's virtual environment."
            if missing
            else done.stderr
        )
        sys.exit(f"count.py: the modules on the path of an element cannot be measured at {root}: {reason}")
    return done.stdout.split()


LISTS = {
    "classes": classes,
    "names": repeated_classes,
    "copies": copies,
    "docstrings": thin_docstrings,
    "private": private_reads,
}


def count(root: Path) -> dict[str, int]:
    """Return all figures of the checkout at `root`."""
    files = sources(root, "dsnb")
    return {
        "files": len(files),
        "lines": sum(len(path.read_text().splitlines()) for path in files),
        "classes": len(list(classes(root))),
        "modules on the path of an element over gRPC": len(path_of_an_element(root)),
        "calls with five or more copies x=y.x": len(list(copies(root))),
        "class names used more than once": len(list(repeated_classes(root))),
        "docstrings of fewer than five words outside overrides": len(list(thin_docstrings(root))),
        "reads of private attributes by tests": len(list(private_reads(root))),
    }


def main() -> None:
    """Print a table of the figures, or the places behind one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("roots", nargs="*", type=Path, default=[HERE], metavar="PATH")
    parser.add_argument("--list", choices=[*LISTS, "modules"], help="print the places behind this figure")
    arguments = parser.parse_args()
    if arguments.list == "modules":
        print("\n".join(path_of_an_element(arguments.roots[0])))
    elif arguments.list:
        for path, line, text in LISTS[arguments.list](arguments.roots[0]):
            print(f"{path.relative_to(arguments.roots[0])}:{line}: {text}")
    else:
        figures = [count(root.resolve()) for root in arguments.roots]
        for name in figures[0]:
            print(f"{name:<56}" + "".join(f"{figure[name]:>10,}" for figure in figures))


if __name__ == "__main__":
    main()
