"""Compares the committed protobuf code with the .proto files, or generates it again.

    python tools/check_protos.py           fails when they differ
    python tools/check_protos.py --write   generates in place

Needs grpcio-tools in the version that pyproject.toml's `lint` extra names: generated code must not be newer than the
oldest protobuf runtime that dsnb supports.
"""

from __future__ import annotations

import argparse
import difflib
import importlib.metadata
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROTO_FOLDER = Path("dsnb/wire/proto")
GRPCIO_TOOLS_VERSION = "1.76.0"


def check_generator() -> None:
    """Leave with advice unless the right generator is installed."""
    try:
        version = importlib.metadata.version("grpcio-tools")
    except importlib.metadata.PackageNotFoundError:
        version = "none"
    if version != GRPCIO_TOOLS_VERSION:
        sys.exit(f"needs grpcio-tools {GRPCIO_TOOLS_VERSION}, found {version}; try: pip install -e '.[all,lint]'")


def generate(into: Path) -> None:
    """Write messages and their types; from the root, so that imports read `from dsnb.wire.proto import ...`."""
    into.mkdir(parents=True, exist_ok=True)
    sources = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / PROTO_FOLDER).glob("*.proto"))]
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--python_out={into}", f"--pyi_out={into}", *sources]
    subprocess.run(command, cwd=ROOT, check=True)


def generated_files(root: Path) -> dict[str, str]:
    """The generated files under a root, by name, with their text."""
    return {path.name: path.read_text() for path in sorted((root / PROTO_FOLDER).glob("*_pb2.py*"))}


def differences(committed: dict[str, str], fresh: dict[str, str]) -> list[str]:
    """The first lines of what differs, file by file."""
    lines = []
    for name in sorted({*committed, *fresh}):
        old, new = committed.get(name, ""), fresh.get(name, "")
        if old != new:
            lines += list(difflib.unified_diff(old.splitlines(), new.splitlines(), name, f"{name} (fresh)", "", "", 0))[
                :9
            ]
    return lines


def main() -> int:
    """Check or write, as the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="generate in place instead of comparing")
    write = parser.parse_args().write
    check_generator()
    if write:
        generate(ROOT)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        lines = differences(generated_files(ROOT), generated_files(Path(folder)))
    if lines:
        print("the committed code is not what the .proto files say; run: python tools/check_protos.py --write")
        print("\n".join(line[:160] for line in lines))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
