"""Memory of a process that has started a service, beyond what the same process takes without it.

    python -m benchmarks.idle_memory [--runs 5] [--write]

Each figure is that of a fresh interpreter, two seconds after its last line: the resident memory, less that of an
interpreter that has imported NumPy and gRPC alone, which most users of dsnb have anyway.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from benchmarks.estimates import estimate
from benchmarks.sections import machine, table, write_section

_ALONE = "import numpy, grpc\n"
_CASES = {
    "`import dsnb`": "import dsnb\n",
    "an idle service with two thread workers": "import dsnb\nservice = dsnb.start(workers=2)\nservice.status()\n",
    "the same, after an epoch of 1,000 numbers": (
        "import dsnb\n"
        "service = dsnb.start(workers=2)\n"
        "numbers = dsnb.Dataset.range(1000).map(lambda x: x).batch(10)\n"
        "list(numbers.apply(dsnb.distribute('distributed_epoch', service)))\n"
    ),
}
_THEN_PRINT = """
import time
time.sleep(2)
with open("/proc/self/status", encoding="ascii") as status:
    print(next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1000)
"""


def resident_mb(code: str) -> float:
    """Megabytes that a fresh interpreter takes after it has run some code."""
    done = subprocess.run([sys.executable, "-c", code + _THEN_PRINT], stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout)


def measure(runs: int) -> list[list[str]]:
    """One line for each case: megabytes beyond NumPy and gRPC, with the interval."""
    alone = [resident_mb(_ALONE) for _ in range(runs)]
    rows = []
    for name, code in _CASES.items():
        value, low, high = estimate([resident_mb(_ALONE + code) - one for one in alone])
        rows.append([name, f"{value:.1f} ({low:.1f} to {high:.1f})"])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="put the table into docs/performance.md")
    options = parser.parse_args()
    text = f"{machine()}; {options.runs} runs.\n\n" + table(("in the process", "MB"), measure(options.runs))
    print(text)
    if options.write:
        write_section("performance.md", "idle_memory", text)


if __name__ == "__main__":
    main()
