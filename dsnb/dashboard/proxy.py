"""The dashboard under Jupyter's own address, as on Binder and on a JupyterHub: an entry point of jupyter-server-proxy.

Whoever may use the Jupyter server may see the page; nobody else reaches it, for it listens on a Unix socket in a folder
of this user's alone. So the page may control the service, and any origin may be allowed: the one that the browser sees
is Jupyter's, which is known to Jupyter alone.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

_START_S = 60
_SESSION_MS = 60_000


def setup() -> dict[str, Any]:
    """What jupyter-server-proxy asks for when it meets the entry point: how to start the page, and where to list it.

    It is started when somebody opens `<Jupyter's address>/dsnb/live`, and ends with the Jupyter server. The service is
    the one that `DSNB_SERVICE` names, or the only one that runs.

    Example:
        >>> setup()["launcher_entry"]["title"]
        'dsnb dashboard'
    """
    page = Path(__file__).with_name("live.py")
    options = {
        "--unix-socket": "{unix_socket}",
        "--allow-websocket-origin": "*",
        "--unused-session-lifetime": str(_SESSION_MS),  # a slow link's page must still find its session
    }
    words = [word for option in options.items() for word in option]
    return {
        "command": [sys.executable, "-m", "panel", "serve", str(page), *words],
        "unix_socket": True,
        "timeout": _START_S,
        "launcher_entry": {"title": "dsnb dashboard", "path_info": "dsnb/live", "category": "Notebook"},
    }
