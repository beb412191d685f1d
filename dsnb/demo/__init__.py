"""`dsnb demo`: two trainers learn to read handwritten digits from one shared preprocessing pass.

`command` is what the command line calls, `run` the demo itself. `pipeline`, `model` and `trainer` are written as a
user would write them, with NumPy and Pillow; `digits` unpacks the images, and serves the tutorials as well.
"""

from __future__ import annotations

from dsnb.demo.command import DESCRIPTION, add_arguments, main, run_command
from dsnb.demo.options import DemoOptions

__all__ = ("DESCRIPTION", "DemoOptions", "add_arguments", "main", "run_command")
