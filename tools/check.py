"""Runs everything that holds the code to its standards, and sums up.

python tools/check.py              all steps
python tools/check.py ruff mypy    only these
python tools/check.py --fix        first lets ruff repair what it can
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHON = sys.executable

STEPS: dict[str, Sequence[str]] = {
    "ruff": [PYTHON, "-m", "ruff", "check"],
    "format": [PYTHON, "-m", "ruff", "format", "--check"],
    "mypy": [PYTHON, "-m", "mypy"],
    "floors": [str(Path(PYTHON).with_name("lint-imports")), "--no-cache", "--no-logo"],
    "names": [PYTHON, "tools/check_names.py"],
    "protos": [PYTHON, "tools/check_protos.py"],
    "house": [PYTHON, "-m", "pytest", "-q", "tests/test_exports.py", "tests/test_house.py"],
}
FIXES: Sequence[Sequence[str]] = (
    [PYTHON, "-m", "ruff", "check", "--fix", "-q"],
    [PYTHON, "-m", "ruff", "format", "-q"],
)


def run(name: str) -> tuple[bool, float]:
    """Run one step; what it printed is shown only if it failed."""
    began = time.monotonic()
    done = subprocess.run(
        STEPS[name], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0:
        print(f"----- {name}: {' '.join(STEPS[name])}\n{done.stdout}")
    return done.returncode == 0, time.monotonic() - began


def main() -> int:
    """Run the steps that the arguments name, and return how many failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"any of: {', '.join(STEPS)}")
    parser.add_argument("--fix", action="store_true", help="let ruff repair what it can first")
    arguments = parser.parse_args()
    unknown = set(arguments.steps) - set(STEPS)
    if unknown:
        parser.error(f"no step {', '.join(sorted(unknown))}; there are {', '.join(STEPS)}")
    for fix in FIXES if arguments.fix else ():
        subprocess.run(fix, cwd=ROOT, check=False)
    results = {name: run(name) for name in arguments.steps or STEPS}
    for name, (passed, seconds) in results.items():
        print(f"{'ok    ' if passed else 'FAILED'} {name:<8} {seconds:5.1f} s")
    return sum(not passed for passed, _ in results.values())


if __name__ == "__main__":
    sys.exit(main())
