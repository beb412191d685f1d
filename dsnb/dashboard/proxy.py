"""Serves the dashboard under Jupyter's own address, as on Binder and JupyterHub: a jupyter-server-proxy entry point.

The server listens on a Unix socket in a directory that only this user can access, so exactly the users of the Jupyter
server can see the page. Therefore the page may control the service, and any websocket origin is allowed: the origin
that the browser sends is Jupyter's, which only Jupyter knows.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

_START_S = 60
_SESSION_MS = 60_000


def setup() -> dict[str, Any]:
    """Describe to jupyter-server-proxy how to start the page and how to list it in the launcher.

    The page starts when a user opens `<Jupyter's address>/dsnb/live`, and ends with the Jupyter server. The service is
    the one that `DSNB_SERVICE` names, or the only one that runs.

    Example:
        >>> setup()["launcher_entry"]["title"]
        'dsnb dashboard'
    """
    page = Path(__file__).with_name("live.py")
    options = {
        "--unix-socket": "{unix_socket}",
        "--allow-websocket-origin": "*",
        "--unused-session-lifetime": str(_SESSION_MS),  # keep the session until a page on a slow network connects
    }
    words = [word for option in options.items() for word in option]
    return {
        "command": [sys.executable, "-m", "panel", "serve", str(page), *words],
        "unix_socket": True,
        "timeout": _START_S,
        "launcher_entry": {
            "title": "dsnb dashboard",
            "path_info": "dsnb/live",
            "category": "Notebook",
            "icon_path": str(Path(__file__).parent / "theme" / "icon.svg"),
        },
    }
