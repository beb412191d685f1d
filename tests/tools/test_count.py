"""`tools/count.py` says why it cannot measure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools" / "count.py"


def test_a_python_without_the_packages_of_dsnb_is_named_with_what_it_lacks(tmp_path: Path) -> None:
    package = tmp_path / "dsnb" / "__init__.py"
    package.parent.mkdir()
    package.write_text("import a_package_that_is_missing\n")
    done = subprocess.run([sys.executable, TOOL, tmp_path], capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 1
    assert f"{sys.executable} has no package a_package_that_is_missing. Run this with a Python in which" in done.stderr
    assert "Traceback" not in done.stderr
