"""`Dataset.save`: writes the elements of one epoch to a folder, all or nothing."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Final

import msgspec

from dsnb.cache.recordings.frames import FRAME_BYTES, encode_frame, frames_from_run
from dsnb.elements.frame import Frame
from dsnb.elements.spec import spec_to_json
from dsnb.elements.structure import flatten
from dsnb.errors import AlreadyExistsError, DsnbError, InvalidArgumentError, UnimplementedError
from dsnb.pipeline.operation import INFINITE_CARDINALITY
from dsnb.pipeline.sources.saved_files import HEAD, MANIFEST, Manifest
from dsnb.storage import files
from dsnb.storage.failpoints import Failpoint
from dsnb.storage.urls import is_url, without_password

if TYPE_CHECKING:
    from dsnb.pipeline.dataset import Dataset

_RUN_ELEMENTS: Final = 4096
_MANIFEST_WRITE = files.WriteFailpoints("saved manifest")
_NAME = Failpoint("saved name")
_FOLDER_SYNC = Failpoint("saved folder sync")


def save_dataset(dataset: Dataset, path: str, file_bytes: int) -> None:
    """Write one epoch to a new folder, which gets its name once it is complete."""
    if is_url(path):
        raise UnimplementedError(
            f"`path` is a URL: {without_password(path)}",
            did="nothing was saved",
            hint="save to a local folder and copy that; Dataset.load reads URLs",
        )
    if dataset.cardinality() == INFINITE_CARDINALITY:
        raise InvalidArgumentError(
            "Saving an infinite dataset is not allowed", did="nothing was saved", hint="put .take(n) in front of .save"
        )
    path = os.path.abspath(path)
    _refuse_existing(path)
    unfinished = f"{path}.saving-{secrets.token_hex(4)}"
    try:
        with _translated_errors(path):
            os.makedirs(unfinished)
        names, counts = _write_files(dataset, unfinished, file_bytes, path)
        manifest = Manifest(element_spec=spec_to_json(dataset.element_spec), files=names, counts=counts)
        with _translated_errors(path):
            files.replace(os.path.join(unfinished, MANIFEST), msgspec.json.encode(manifest), _MANIFEST_WRITE)
            _refuse_existing(path)
            with _NAME:
                os.rename(unfinished, path)
        with _translated_errors(path, "it was saved, but a power failure may undo that"):
            files.sync_folder(os.path.dirname(path), _FOLDER_SYNC)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


@contextmanager
def _translated_errors(path: str, did: str = "nothing was saved") -> Iterator[None]:
    """Translate the system's errors about what is written; those that reading the dataset raises are the user's."""
    try:
        yield
    except OSError as error:
        if isinstance(error, DsnbError):
            raise
        raise files.translate_os_error(error, f"saving to {path}", did) from error


def _refuse_existing(path: str) -> None:
    if os.path.lexists(path):
        raise AlreadyExistsError(
            f"{path} exists: a save was already started or completed there, or it is something else",
            did="nothing was saved, and it was left as it is",
            hint="choose another path, or remove it first",
        )


def _write_files(dataset: Dataset, folder: str, file_bytes: int, path: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Write all elements; returns the names of the files and their numbers of elements. `path` is for errors."""
    names: list[str] = []
    counts: list[int] = []
    file: IO[bytes] | None = None
    try:
        for frame in _frames(dataset):
            with _translated_errors(path):
                if file is None:
                    names.append(f"{len(names):05d}.frames")
                    counts.append(0)
                    file = open(os.path.join(folder, names[-1]), "wb")  # noqa: SIM115 - closed below
                parts, nbytes, digest = encode_frame(frame)
                file.write(HEAD.pack(nbytes, bytes.fromhex(digest)))
                file.writelines(parts)
                counts[-1] += frame.count
                if file.tell() >= file_bytes:
                    _sync_and_close(file)
                    file = None
        if file is not None:
            with _translated_errors(path):
                _sync_and_close(file)
    finally:
        if file is not None:
            file.close()
    return tuple(names), tuple(counts)


def _frames(dataset: Dataset) -> Iterator[Frame]:
    """The elements in frames of about `FRAME_BYTES`."""
    with iter(dataset) as elements:
        run: list[Any] = []
        nbytes = 0
        for element in elements:
            run.append(element)
            nbytes += sum(getattr(leaf, "nbytes", None) or len(leaf) for leaf in flatten(element))
            if len(run) >= _RUN_ELEMENTS or nbytes >= FRAME_BYTES:
                yield from frames_from_run(run)
                run, nbytes = [], 0
        if run:
            yield from frames_from_run(run)


def _sync_and_close(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()
