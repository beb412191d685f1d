"""What a function prints and displays while it runs, kept to be shown again.

Printing is heard by a stand-in for `sys.stdout` and `sys.stderr` that passes everything on, and tells threads apart:
what others print meanwhile is not the function's. In a kernel, what is displayed is heard where it is published.
"""

from __future__ import annotations

import base64
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

_MOST: Final = 1 << 20  # characters of one call that are kept
_STREAMS: Final = ("stdout", "stderr")
_WIDGET: Final = "application/vnd.jupyter.widget-view+json"

Output = list[Any]
"""["stdout", text], ["stderr", text] or ["display", data, metadata], as JSON has them."""


class OutputCapture:
    """The outputs of one call, in order."""

    def __init__(self) -> None:
        self.outputs: list[Output] = []
        self._characters_left = _MOST

    def on_text(self, stream: str, text: str) -> None:
        """Hear printing."""
        if self._reserve(len(text)):
            if self.outputs and self.outputs[-1][0] == stream:
                self.outputs[-1][1] += text
            else:
                self.outputs.append([stream, text])

    def on_display_message(self, message: dict[str, Any]) -> dict[str, Any]:
        """Hear a message of a kernel; a hook of its display publisher, which sends on what this returns."""
        content = message.get("content", {})
        if message.get("header", {}).get("msg_type") == "display_data":
            # A widget lives in the kernel that made it: what it says of itself in text is all that can be kept.
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
    """What a kernel makes of a value that JSON has not: the bytes of pictures."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else repr(value)


class _ThreadCaptures(threading.local):
    def __init__(self) -> None:
        self.active: list[OutputCapture] = []


_captures = _ThreadCaptures()
_lock = threading.Lock()
_active_captures = 0


class _TeeStream:
    """Stands in for a stream: passes everything on, and tells the recorders of this thread what is written."""

    def __init__(self, name: str, stream: Any) -> None:
        self._name = name
        self._stream = stream

    def write(self, text: str) -> Any:
        for capture in _captures.active:
            capture.on_text(self._name, text)
        return self._stream.write(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def capture_output() -> Iterator[list[Output]]:
    """The outputs of this thread while the block runs; they are seen as always."""
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
                setattr(sys, name, stream._stream)


def _publisher() -> Any:
    """The kernel's display publisher; None outside of kernels."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = get_ipython() if get_ipython else None
    publisher = getattr(shell, "display_pub", None)
    return publisher if hasattr(publisher, "register_hook") else None


def replay(title: str, outputs: list[Output]) -> None:
    """Show outputs again, below a line that says what they are; nothing where there are none."""
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
