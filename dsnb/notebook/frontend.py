"""The application that shows this process's cells, where it decides how the dashboard is reached."""

from __future__ import annotations

import os
import sys
from enum import Enum
from typing import Any


class Frontend(Enum):
    """An application that shows cells."""

    VS_CODE = "VS Code"
    COLAB = "Colab"
    OTHER = "another one, or a terminal"


def detect_frontend() -> Frontend:
    """Find out which application shows the cells of this process.

    Colab loads its own package into each kernel. VS Code sets variables in the environment of a kernel that it starts,
    and puts the notebook's path into the namespace of any kernel that it uses, also of one on a Jupyter server. The
    terminal of VS Code has neither, so a kernel of a Jupyter server that was started there is not taken for VS Code's.
    """
    shell = running_shell()
    if shell is None:
        return Frontend.OTHER
    if "google.colab" in sys.modules:
        return Frontend.COLAB
    if "VSCODE_PID" in os.environ or "__vsc_ipynb_file__" in getattr(shell, "user_ns", {}):
        return Frontend.VS_CODE
    return Frontend.OTHER


def running_shell() -> Any:
    """The IPython shell of this process if it is a Jupyter kernel, else None."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    return shell if hasattr(shell, "kernel") else None


def vs_code_url(port: str, path: str) -> str:
    """The address under which a browser, or the window of VS Code, reaches a port of this machine.

    Args:
        port: The port.
        path: The path on that server, without the slash at its start.
    """
    # Set by code-server and its relatives, as in https://host/proxy/{{port}}.
    template = os.environ.get("VSCODE_PROXY_URI", "")
    if template.startswith(("http://", "https://")):
        return f"{template.replace('{{port}}', port).rstrip('/')}/{path}"
    name, domain = os.environ.get("CODESPACE_NAME"), os.environ.get("GITHUB_CODESPACES_PORT_FORWARDING_DOMAIN")
    if name and domain:
        return f"https://{name}-{port}.{domain}/{path}"
    return f"http://127.0.0.1:{port}/{path}"  # VS Code forwards the ports of a remote machine to its own
