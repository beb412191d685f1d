"""Opens the dashboard in the user's browser."""

from __future__ import annotations

import os
import sys
import webbrowser


def open_in_browser(url: str) -> bool:
    """Open a page in the browser, if there is a display; return whether a browser was found.

    Without a display, a text browser might take over the terminal.
    """
    return _has_display() and webbrowser.open(url)


def _has_display() -> bool:
    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
