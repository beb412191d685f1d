"""One element as a table, for `Dataset.peek`."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterator
from importlib.util import find_spec
from io import BytesIO
from typing import Any, Final

import msgspec
import numpy as np

from dsnb.arguments import short_repr
from dsnb.elements.data_classes import field_names
from dsnb.elements.spec import leaf_spec
from dsnb.elements.structure import field_values

_HEADINGS: Final = ("leaf", "shape", "dtype", "values")
_THUMBNAIL: Final = 96
"""The longest side of a thumbnail, in pixels."""


class Leaf(msgspec.Struct, frozen=True):
    """One leaf of an element, as a row of the table.

    Attributes:
        path: Where it is in the element, as in `image` or `0.x`; empty for an element that is one leaf.
        shape: Its shape.
        dtype: Its dtype.
        values: Its value if it is short, else the range of its values.
        value: The leaf.
    """

    path: str
    shape: tuple[int | None, ...]
    dtype: str
    values: str
    value: Any


class PeekedElement(msgspec.Struct, frozen=True):
    """One element of a dataset; prints as a table of its leaves, in a notebook with thumbnails of images.

    Attributes:
        element: The element.
    """

    element: Any

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """A row for each leaf."""
        return tuple(_leaf(path, value) for path, value in _walk(self.element, ""))

    def __repr__(self) -> str:
        rows = [_HEADINGS, *(_cells(leaf) for leaf in self.leaves)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
        lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
        return "\n".join(line.rstrip() for line in lines)

    def _repr_html_(self) -> str:
        rows = "".join(
            "<tr>"
            + "".join(f"<td>{html.escape(cell)}</td>" for cell in _cells(leaf))
            + f"<td>{_image_tag(leaf.value)}</td></tr>"
            for leaf in self.leaves
        )
        heads = "".join(f"<th>{name}</th>" for name in (*_HEADINGS, ""))
        return f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"


def _cells(leaf: Leaf) -> tuple[str, ...]:
    return leaf.path, str(leaf.shape), leaf.dtype, leaf.values


def _walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    names = field_names(type(value))
    if isinstance(value, dict):
        parts = list(value.items())
    elif names is not None:
        parts = list(zip(names, field_values(value, names), strict=True))
    elif isinstance(value, (tuple, list)):
        parts = [(str(number), part) for number, part in enumerate(value)]
    else:
        yield path, value
        return
    for name, part in parts:
        yield from _walk(part, f"{path}.{name}" if path else name)


def _leaf(path: str, value: Any) -> Leaf:
    if value is None:
        return Leaf(path, (), "None", "", None)
    spec = leaf_spec(value)
    dtype = type(value).__name__ if isinstance(value, (str, bytes)) else str(spec.dtype)
    return Leaf(path, spec.shape, dtype, _values(value), value)


def _values(value: Any) -> str:
    array = np.asarray(value)
    if array.size <= 6 or array.dtype.kind not in "biuf":
        return short_repr(array.tolist())
    return f"{array.min()} to {array.max()}"


def thumbnail(value: Any) -> bytes:
    """A PNG of a leaf that looks like an image; empty for others, and without Pillow."""
    pixels = _pixels(value) if find_spec("PIL") is not None else None
    if pixels is None:
        return b""
    from PIL import Image

    image = Image.fromarray(pixels)
    image.thumbnail((_THUMBNAIL, _THUMBNAIL))
    file = BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def _image_tag(value: Any) -> str:
    png = thumbnail(value)
    return f'<img alt="" src="data:image/png;base64,{base64.b64encode(png).decode()}">' if png else ""


def _pixels(value: Any) -> np.ndarray[Any, Any] | None:
    """Return grey or RGB pixels of an array (height, width[, channels]) or (1 or 3, height, width); None for others."""
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "buf" or value.ndim not in (2, 3):
        return None
    if value.ndim == 3 and value.shape[0] in (1, 3) and value.shape[2] not in (1, 3, 4):
        value = value.transpose(1, 2, 0)
    if value.ndim == 3 and value.shape[2] == 1:
        value = value[:, :, 0]
    if min(value.shape[:2]) < 8 or (value.ndim == 3 and value.shape[2] not in (3, 4)):
        return None
    if value.dtype != np.uint8:
        value = np.nan_to_num(value.astype(np.float32))
        low, high = float(value.min()), float(value.max())
        value = ((value - low) * (255 / (high - low) if high > low else 0)).astype(np.uint8)
    return np.ascontiguousarray(value)
