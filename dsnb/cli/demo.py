"""`dsnb demo`: two trainers share one preprocessing pass over real data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsnb.cli.options import add_command
from dsnb.demo import DESCRIPTION, add_arguments, run_command

if TYPE_CHECKING:
    from dsnb.cli.options import Commands

EXAMPLES = """\
  dsnb demo                        opens the dashboard; its address is the first line printed
  dsnb demo --record run.db        and then `dsnb report run.db run.html`, or `dsnb dashboard --replay run.db`
  dsnb demo --no-dashboard --json  the figures alone, for a script"""


def add_to(commands: Commands) -> None:
    add_arguments(add_command(commands, "demo", run_command, DESCRIPTION, EXAMPLES))
