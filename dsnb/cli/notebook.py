"""`dsnb notebook`: write a notebook to begin with."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from dsnb.cli.options import add_command, add_json

if TYPE_CHECKING:
    from dsnb.cli.options import Commands

DESCRIPTION = """\
Write a notebook to begin with: a service, a dataset, a training loop, and what limits it.

Replace its function, its dataset and its training step by your own. JupyterLab has the same notebook in its launcher,
under "Template", if jupyterlab-templates is installed beside it."""
EXAMPLES = """\
  dsnb notebook                  dsnb.ipynb, in this folder
  dsnb notebook train.ipynb      under another name"""


def add_to(commands: Commands) -> None:
    parser = add_command(commands, "notebook", run, DESCRIPTION, EXAMPLES)
    parser.add_argument("path", nargs="?", default="dsnb.ipynb", help="the file to write (default: %(default)s)")
    add_json(parser, "print the line as JSON, with `notebook`")


def run(args: argparse.Namespace) -> int:
    """Write the notebook and print its path."""
    from dsnb.notebook.template import write_notebook

    path = write_notebook(args.path)
    print(json.dumps({"notebook": path}) if args.as_json else f"notebook written to {path}")
    return 0
