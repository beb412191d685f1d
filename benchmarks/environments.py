"""Virtual environments of the peers: each has its own, with pinned versions, built when it is first asked for.

    python -m benchmarks.environments                 build all, and print where their interpreters are
    python -m benchmarks.environments tensorflow      only this one

They lie in `~/.cache/dsnb-benchmarks`, or where `DSNB_BENCHMARKS` says. pip's own settings (`PIP_INDEX_URL`,
`PIP_FIND_LINKS`) hold: where the package index gives torch with CUDA for Linux, point pip at wheels for the CPU.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD_S = 1800.0


@dataclass(frozen=True, kw_only=True)
class Environment:
    """What is installed, and for what.

    Args:
        name: Of its folder.
        packages: Requirements, pinned.
        without_dependencies: Whether they are installed without what they ask for, because only their files are wanted.
        purpose: What it is for.
    """

    name: str
    packages: tuple[str, ...]
    purpose: str
    without_dependencies: bool = False


def _dsnb_packages() -> tuple[str, ...]:
    """What dsnb itself asks for, with the extras that a pipeline may use; not the notebook's nor the tests'."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    excluded = {"all", "lint", "notebook", "test", "redis", "remote", "fsspec"}
    extras = [
        line for name, lines in project["optional-dependencies"].items() if name not in excluded for line in lines
    ]
    return (*project["dependencies"], *extras)


_TORCH = ("torch==2.13.0", "numpy==2.4.6")
_DECODERS = ("simplejpeg==1.9.0", "opencv-python-headless>=4.12,<6", "pillow>=12")
ENVIRONMENTS = {
    made.name: made
    for made in (
        Environment(
            name="dsnb",
            # The checkout itself is on PYTHONPATH. The decoders are for the pipelines of images.
            packages=(*_dsnb_packages(), "numpy==2.4.6", *_DECODERS),
            purpose="dsnb, and what its pipelines of images use",
        ),
        Environment(name="tensorflow", packages=("tensorflow-cpu==2.21.0",), purpose="the tf.data service"),
        Environment(
            name="torch",
            packages=(*_dsnb_packages(), *_TORCH, *_DECODERS),
            purpose="PyTorch's DataLoader, and dsnb read through `to_torch`",
        ),
        Environment(
            name="tensorsocket", packages=("tensorsocket==0.0.5", *_TORCH), purpose="one loader, many trainers"
        ),
        Environment(name="grain", packages=("grain==0.2.18",), purpose="Grain's DataLoader"),
        Environment(
            name="ray",
            # Ray's threads all import fsspec's HTTPFileSystem. Without aiohttp the import fails, and Ray expects only
            # the error of the thread that came first; the others get another one.
            packages=("ray[data]==2.60.0", "aiohttp==3.14.5", "pillow>=12"),
            purpose="Ray Data",
        ),
        Environment(
            name="spdl", packages=("spdl==0.8.0", "numpy==2.4.6", "pillow>=12"), purpose="SPDL's pipeline of threads"
        ),
        Environment(name="datasets", packages=("datasets==5.2.0",), purpose="HuggingFace datasets, for caches.py"),
        Environment(
            name="photos",
            packages=("scikit-learn==1.9.0", "scikit-image==0.26.0"),
            purpose="the photographs that these packages ship as samples",
            without_dependencies=True,
        ),
    )
}


VERSIONED_PACKAGES = (
    "numpy",
    "grpcio",
    "simplejpeg",
    "tensorflow-cpu",
    "torch",
    "tensorsocket",
    "grain",
    "ray",
    "spdl",
)
"""The packages whose versions are told."""
_VERSIONS = "import importlib.metadata as m, sys; print(*map(m.version, sys.argv[1:]))"


def benchmarks_folder() -> Path:
    """Where environments and results are kept."""
    return Path(os.environ.get("DSNB_BENCHMARKS") or Path.home() / ".cache" / "dsnb-benchmarks")


def environment_folder(name: str) -> Path:
    """The folder of an environment: another one for other versions or another Python."""
    made = ENVIRONMENTS[name]
    digest = hashlib.blake2b(repr((made.packages, made.without_dependencies)).encode(), digest_size=4).hexdigest()
    return benchmarks_folder() / f"{name}-{sys.version_info.major}.{sys.version_info.minor}-{digest}"


def python_of(name: str) -> Path:
    """The interpreter of an environment, which is built if it is not there.

    Raises:
        EnvironmentMissingError: it could not be built; the error says why.
    """
    path = environment_folder(name)
    if not (path / "complete").exists():
        _build(ENVIRONMENTS[name], path)
    return path / "bin" / "python"


def versions_of(names: Iterable[str]) -> dict[str, str]:
    """What is pinned in the environments that are there, by package; the peers' main packages."""
    found: dict[str, str] = {}
    for name in names:
        wanted = [
            package for package in VERSIONED_PACKAGES if any(r.startswith(package) for r in ENVIRONMENTS[name].packages)
        ]
        if (environment_folder(name) / "complete").exists() and wanted:
            words = [str(python_of(name)), "-c", _VERSIONS, *wanted]
            done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, timeout=60)
            found.update(zip(wanted, done.stdout.split(), strict=True))
    return found


def package_version(environment: str, package: str) -> str:
    """The version of a package in an environment, which is built if it is not there."""
    words = [str(python_of(environment)), "-c", _VERSIONS, package]
    return subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout.strip()


class EnvironmentMissingError(RuntimeError):
    """An environment that could not be built."""


def _build(made: Environment, path: Path) -> None:
    """Build an environment; whoever asks for it meanwhile waits, and one that was broken off is begun anew."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{path}.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (path / "complete").exists():
            return
        shutil.rmtree(path, ignore_errors=True)
        print(f"building {path} ({made.purpose})", file=sys.stderr, flush=True)
        _run([sys.executable, "-m", "venv", str(path)])
        pip = [str(path / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run([*pip, *(["--no-deps"] if made.without_dependencies else []), *made.packages])
        (path / "complete").touch()


def _run(words: Sequence[str]) -> None:
    try:
        done = subprocess.run(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=BUILD_S
        )
    except subprocess.TimeoutExpired as late:
        raise EnvironmentMissingError(f"{' '.join(words)} took longer than {BUILD_S:g} seconds") from late
    if done.returncode:
        last = done.stdout.strip().splitlines()[-3:]
        raise EnvironmentMissingError(f"{' '.join(words)} failed: {' / '.join(last)}")


def main() -> int:
    """Build what the arguments name, or all; how many could not be built."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of: {', '.join(ENVIRONMENTS)}")
    names = parser.parse_args().names or list(ENVIRONMENTS)
    if unknown := set(names) - set(ENVIRONMENTS):
        parser.error(f"no environment {', '.join(sorted(unknown))}; there are {', '.join(ENVIRONMENTS)}")
    failed = 0
    for name in names:
        try:
            print(f"{name:12} {python_of(name)}", flush=True)
        except EnvironmentMissingError as error:
            failed += 1
            print(f"{name:12} {error}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
