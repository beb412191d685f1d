"""`python -m dsnb`: the command line, also if the `dsnb` script is not on the path."""

from __future__ import annotations

import sys

from dsnb.cli import main

if __name__ == "__main__":
    sys.exit(main())
