"""Programs and modules that a test needs and a machine may lack."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
from typing import Any, NoReturn

import pytest

# Debian, Fedora and Google name the same browser differently.
_OTHER_NAMES = {"chromium": ("chromium", "chromium-browser", "google-chrome")}


def require(program: str) -> str:
    """The path of a program, as in `require("redis-server")`.

    Where it is missing the test is skipped with that reason, or fails if `DSNB_REQUIRE_ALL=1` says that nothing may be.
    """
    paths = filter(None, map(shutil.which, _OTHER_NAMES.get(program, (program,))))
    return next(paths, None) or _skip_or_fail(f"the program {program} is not installed")


def require_peer(name: str) -> Any:
    """Import a large framework or engine, such as torch, jax, ray or distributed.

    They are installed in one environment of CI, which sets `DSNB_REQUIRE_PEERS=1`; elsewhere the test is skipped.
    """
    if importlib.util.find_spec(name.partition(".")[0]) is not None:
        return importlib.import_module(name)
    reason = f"{name} is not installed (the extra dsnb[peers] has it)"
    if os.environ.get("DSNB_REQUIRE_PEERS") == "1":
        pytest.fail(f"{reason}, and DSNB_REQUIRE_PEERS=1 lets no test be skipped for that", pytrace=False)
    pytest.skip(reason, allow_module_level=True)


def require_condition(condition: bool, reason: str) -> None:
    """Go on only if the condition holds; else as `require` does, with this reason."""
    if not condition:
        _skip_or_fail(reason)


def require_module(name: str) -> None:
    """Go on only where a Python module can be imported, as in `require_module("panel")`; else as `require` does."""
    if importlib.util.find_spec(name) is None:
        _skip_or_fail(f"the Python module {name} is not installed")


def _skip_or_fail(reason: str) -> NoReturn:
    if os.environ.get("DSNB_REQUIRE_ALL") == "1":
        pytest.fail(f"{reason}, and DSNB_REQUIRE_ALL=1 lets no test be skipped for that", pytrace=False)
    pytest.skip(reason)
