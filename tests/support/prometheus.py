"""A real Prometheus for a test: on a free port, with files of its own, surely ended."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

from tests.support.ports import unused_port
from tests.support.requires import require
from tests.support.waiting import wait_for


def promtool(*arguments: str, stdin: str = "") -> str:
    """What promtool finds wrong; empty if nothing."""
    done = subprocess.run(
        [require("promtool"), *arguments], input=stdin, capture_output=True, text=True, check=False, timeout=60
    )
    return "" if done.returncode == 0 and not done.stderr else f"{done.returncode}: {done.stdout}{done.stderr}"


class Prometheus:
    """A running Prometheus."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def is_ready(self) -> bool:
        """Whether it answers."""
        try:
            with urlopen(f"{self._url}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False

    def query(self, expression: str) -> list[dict[str, Any]]:
        """What an instant query finds: series, each with `metric` (its labels) and `value`."""
        return list(self._get("query", query=expression)["result"])

    def targets(self) -> list[dict[str, Any]]:
        """The targets that it scrapes, each with `health` and `lastError`."""
        return list(self._get("targets")["activeTargets"])

    def _get(self, path: str, **parameters: str) -> Any:
        with urlopen(f"{self._url}/api/v1/{path}?{urlencode(parameters)}", timeout=30) as answer:
            return json.load(answer)["data"]


@contextmanager
def prometheus(configuration: str, folder: Path) -> Iterator[Prometheus]:
    """Run Prometheus with this configuration; it is skipped or fails where it is not installed."""
    program, port = require("prometheus"), unused_port()
    (folder / "prometheus.yml").write_text(configuration)
    command = [
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            server = Prometheus(port)
            wait_for(server.is_ready, what="Prometheus to be ready", timeout=60, every=0.1)
            yield server
        except BaseException as error:
            error.add_note((folder / "log").read_text(errors="replace")[-3000:])
            raise
        finally:
            process.kill()
