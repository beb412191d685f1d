"""The notebook to begin with: a service, a dataset, a training loop, and what limits it.

JupyterLab offers it in its launcher if jupyterlab-templates is installed: the wheel puts the same file among Jupyter's
shared files, where that extension looks (`shared-data` in pyproject.toml).
"""

from __future__ import annotations

import os
from pathlib import Path

from dsnb.errors import AlreadyExistsError, FailedPreconditionError
from dsnb.system_limits import describe_os_error

_TEMPLATE = Path(__file__).parent / "templates" / "dsnb.ipynb"


def write_notebook(path: str | os.PathLike[str]) -> str:
    """Write the template as a new notebook and return its absolute path.

    Args:
        path: The file to write; `.ipynb` is added if it does not end so.

    Raises:
        AlreadyExistsError: there is such a file.
        FailedPreconditionError: the file cannot be written.
    """
    asked = Path(path)
    target = asked if asked.suffix == ".ipynb" else asked.with_name(f"{asked.name}.ipynb")
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(_TEMPLATE.read_text(encoding="utf-8"))
    except FileExistsError:
        raise AlreadyExistsError(
            f"{target} is there already", did="it was left as it is", hint="give another name"
        ) from None
    except OSError as error:
        raise FailedPreconditionError(
            f"{target} cannot be written: {describe_os_error(error)}", did="no notebook was written"
        ) from error
    return str(target.absolute())
