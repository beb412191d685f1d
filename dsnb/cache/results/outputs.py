"""Captures what a function prints and displays while it runs, to show it again later.

`sys.stdout` and `sys.stderr` are replaced by streams that pass everything on and capture only the thread's own output:
what other threads print meanwhile is not the function's. In a kernel, displayed objects are captured where they are
published.
"""

from __future__ import annotations

import base64
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

_MOST: Final = 1 << 20  # characters that are kept of one call
_STREAMS: Final = ("stdout", "stderr")
_WIDGET: Final = "application/vnd.jupyter.widget-view+json"

Output = list[Any]
"""["stdout", text], ["stderr", text] or ["display", data, metadata], in JSON types."""


class OutputCapture:
    """Collects the outputs of one call, in order."""

    def __init__(self) -> None:
        self.outputs: list[Output] = []
        self._characters_left = _MOST

    def on_text(self, stream: str, text: str) -> None:
        """Capture printed text, and join it with the previous text of the same stream."""
        if self._reserve(len(text)):
            if self.outputs and self.outputs[-1][0] == stream:
                self.outputs[-1][1] += text
            else:
                self.outputs.append([stream, text])

    def on_display_message(self, message: dict[str, Any]) -> dict[str, Any]:
        """Capture a kernel's display message; a hook of the display publisher, which sends what this returns."""
        content = message.get("content", {})
        if message.get("header", {}).get("msg_type") == "display_data":
            # A widget lives only as long as its kernel: keep its text representation alone.
            data = {kind: item for kind, item in content.get("data", {}).items() if kind != _WIDGET}
            text = json.dumps(["display", data, content.get("metadata", {})], default=_json_default)
            if data and self._reserve(len(text)):
                self.outputs.append(json.loads(text))
        return message

    def _reserve(self, size: int) -> bool:
        if self._characters_left < 0:
            return False
        self._characters_left -= size
        if self._characters_left < 0:
            self.outputs.append(["stdout", "\n(what was printed after this was not kept)\n"])
        return self._characters_left >= 0


def _json_default(value: Any) -> str:
    """Convert a value that JSON does not support as kernels do: the bytes of pictures as base64."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else repr(value)


class _ThreadCaptures(threading.local):
    def __init__(self) -> None:
        self.active: list[OutputCapture] = []


_captures = _ThreadCaptures()
_lock = threading.Lock()
_active_captures = 0


class _TeeStream:
    """Replaces a stream: passes everything on, and copies it to the captures of the writing thread."""

    def __init__(self, name: str, stream: Any) -> None:
        self._name = name
        self.wrapped = stream

    def write(self, text: str) -> Any:
        for capture in _captures.active:
            capture.on_text(self._name, text)
        return self.wrapped.write(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wrapped, name)


@contextmanager
def capture_output() -> Iterator[list[Output]]:
    """Capture the outputs of this thread during the block; they are also shown as usual."""
    capture = OutputCapture()
    publisher = _publisher()
    _install_tees()
    _captures.active.append(capture)
    if publisher is not None:
        publisher.register_hook(capture.on_display_message)
    try:
        yield capture.outputs
    finally:
        if publisher is not None:
            publisher.unregister_hook(capture.on_display_message)
        _captures.active.remove(capture)
        _remove_tees()


def _install_tees() -> None:
    global _active_captures
    with _lock:
        _active_captures += 1
        for name in _STREAMS:
            stream = getattr(sys, name)
            if not isinstance(stream, _TeeStream) and stream is not None:
                setattr(sys, name, _TeeStream(name, stream))


def _remove_tees() -> None:
    global _active_captures
    with _lock:
        _active_captures -= 1
        for name in _STREAMS:
            stream = getattr(sys, name)
            if not _active_captures and isinstance(stream, _TeeStream):
                setattr(sys, name, stream.wrapped)


def _publisher() -> Any:
    """The kernel's display publisher; None outside of kernels."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = get_ipython() if get_ipython else None
    publisher = getattr(shell, "display_pub", None)
    return publisher if hasattr(publisher, "register_hook") else None


def replay(title: str, outputs: list[Output]) -> None:
    """Show outputs again, below a title line; prints nothing if there are none."""
    if not outputs:
        return
    publisher = _publisher()
    print(title)  # noqa: T201 - they were printed
    for kind, what, *more in outputs:
        if kind in _STREAMS:
            getattr(sys, kind).write(what)
        elif publisher is not None:
            publisher.publish(data=what, metadata=more[0])
        else:
            print(what.get("text/plain", ""))  # noqa: T201
