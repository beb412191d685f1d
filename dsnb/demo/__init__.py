"""`dsnb demo`: two trainers learn to classify handwritten digits from one shared preprocessing pass.

`command` is the entry point of the command line, `run` the demo itself. `pipeline`, `model` and `trainer` are written
as a user would write them, with NumPy and Pillow. `digits` unpacks the images; the tutorials use it too.
"""

from __future__ import annotations

from dsnb.demo.command import DESCRIPTION, add_arguments, main, run_command
from dsnb.demo.options import DemoOptions

__all__ = ("DESCRIPTION", "DemoOptions", "add_arguments", "main", "run_command")
