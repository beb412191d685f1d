"""Where a training keeps what it persists: folders by name, and `Resource`, one of them as an output."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dsnb.dataclass import dataclass
from dsnb.errors import InvalidArgumentError, NotFoundError


@dataclass(frozen=True, kw_only=True)
class Resource:
    """The output of a step that persists itself as a folder: its name there, and a fingerprint of what it holds.

    It is `Cacheable`: it copies its folder out of one model storage and back into another.

    Args:
        name: The folder's name in a `ModelStorage`.
        output_fingerprint: What tells two versions of it apart.

    Example:
        >>> resource = Resource(name="tokenizer", output_fingerprint="3f9a")
        >>> with storage.write_to(resource) as directory:
        ...     (directory / "vocabulary.txt").write_text("a b c")
    """

    name: str
    output_fingerprint: str = ""

    def fingerprint(self) -> str:
        """What tells two versions of this resource apart."""
        return self.output_fingerprint

    def to_cache(self, directory: Path, model_storage: ModelStorage) -> None:
        """Copy the resource's folder out of the storage; one that was never written is stored as empty."""
        if model_storage.has(self):
            with model_storage.read_from(self) as source:
                shutil.copytree(source, directory, dirs_exist_ok=True, symlinks=True)

    @classmethod
    def from_cache(
        cls, node_name: str, directory: Path, model_storage: ModelStorage, output_fingerprint: str
    ) -> Resource:
        """Copy a stored folder into the storage, in the place of what was there under `node_name`."""
        resource = cls(name=node_name, output_fingerprint=output_fingerprint)
        with model_storage.write_to(resource) as target:
            for item in target.iterdir():
                _remove(item)
            shutil.copytree(directory, target, dirs_exist_ok=True, symlinks=True)
        return resource


class ModelStorage:
    """A folder that holds one folder for each resource of a model in training.

    Args:
        directory: Where; made when something is written first.

    Example:
        >>> storage = ModelStorage("/data/model-7")
        >>> with storage.write_to(Resource(name="weights")) as directory:
        ...     np.save(directory / "w.npy", w)
        >>> with storage.read_from(Resource(name="weights")) as directory:
        ...     w = np.load(directory / "w.npy")
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory).absolute()

    def __repr__(self) -> str:
        return f"ModelStorage({str(self.directory)!r})"

    def has(self, resource: Resource) -> bool:
        """Whether the resource was written here."""
        return self._path(resource).is_dir()

    @contextmanager
    def write_to(self, resource: Resource) -> Iterator[Path]:
        """The resource's folder, to write to; it is made where it is missing, with what is in it where not.

        Raises:
            InvalidArgumentError: for a name that is no name of a folder.
        """
        path = self._path(resource)
        path.mkdir(parents=True, exist_ok=True)
        yield path

    @contextmanager
    def read_from(self, resource: Resource) -> Iterator[Path]:
        """The resource's folder, to read from.

        Raises:
            InvalidArgumentError: for a name that is no name of a folder.
            NotFoundError: nothing was written under that name.
        """
        if not self.has(resource):
            raise NotFoundError(
                f"the model storage {str(self.directory)!r} has no resource {resource.name!r}",
                hint="write it first, with `write_to`; a restored result brings its resource along",
            )
        yield self._path(resource)

    def _path(self, resource: Resource) -> Path:
        name = resource.name
        if not name or name in {".", ".."} or "/" in name or "\0" in name:
            raise InvalidArgumentError(
                f"a resource is called {name!r}", hint="name it as a folder can be named, without '/'"
            )
        return self.directory / name


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
