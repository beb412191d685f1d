"""What contenders that are written in Python do with a photograph. The decoders are imported when they are used."""

from __future__ import annotations

import functools
import importlib
import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import data


def image(decode: Callable[[bytes], data.Array], path: Any) -> data.Array:
    """Decode, crop at random, resize, mirror at random."""
    decoded = decode(Path(str(path)).read_bytes())
    top, left = random.randrange(decoded.shape[0] - 319), random.randrange(decoded.shape[1] - 319)
    small = _resize(decoded[top : top + 320, left : left + 320])
    return np.ascontiguousarray(small[:, ::-1]) if random.random() < 0.5 else small


def _resize(crop: data.Array) -> data.Array:
    cv2: Any = importlib.import_module("cv2")
    resized: data.Array = cv2.resize(crop, (data.SIDE, data.SIDE), interpolation=cv2.INTER_LINEAR)
    return resized


def _turbo(jpeg: bytes) -> data.Array:
    decoded: data.Array = importlib.import_module("simplejpeg").decode_jpeg(jpeg)
    return decoded


def _pillow(jpeg: bytes) -> data.Array:
    return np.asarray(importlib.import_module("PIL.Image").open(io.BytesIO(jpeg)))


def pillow_image(path: Any) -> data.Array:
    """The same with Pillow and NumPy alone, as it is usually written."""
    pillow: Any = importlib.import_module("PIL.Image")
    with pillow.open(str(path)) as opened:
        whole = opened.convert("RGB")
    left, top = random.randrange(whole.width - 319), random.randrange(whole.height - 319)
    small = whole.crop((left, top, left + 320, top + 320)).resize((data.SIDE, data.SIDE), pillow.Resampling.BILINEAR)
    pixels = np.asarray(small)
    return np.ascontiguousarray(pixels[:, ::-1]) if random.random() < 0.5 else pixels


READERS: dict[str, Callable[[Any], data.Array]] = {
    "simplejpeg": functools.partial(image, _turbo),
    "pillow": functools.partial(image, _pillow),
    "pillow and numpy": pillow_image,
}
"""By the name of the decoder, what makes an array of the path of a photograph."""
