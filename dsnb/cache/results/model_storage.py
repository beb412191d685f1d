"""Storage for what a training persists: named folders, and `Resource`, an output that is one of these folders."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsnb.arguments import checked, encodable, instance, path, short_repr, text
from dsnb.cache.results.folder_hash import hash_folder
from dsnb.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError


def _resource_name(name: str, value: Any) -> str:
    given = text(name, value)
    if given in {".", ".."} or "/" in given or len(given.encode()) > _LONGEST_NAME:
        raise InvalidArgumentError(
            f"`{name}` is {short_repr(given)}", hint="name it as a folder can be named, without '/', not too long"
        )
    return given


_LONGEST_NAME = 250
"""In bytes; file systems allow 255 for a folder's name."""


@checked(name=_resource_name, output_fingerprint=encodable)
@dataclass(frozen=True)
class Resource:
    """The output of a step that persists itself as a folder: the folder's name, and a fingerprint of its content.

    It is `Cacheable`: it copies its folder from one model storage to another. Two resources are equal if they have the
    same name.

    Args:
        name: The folder's name in a `ModelStorage`.
        output_fingerprint: Distinguishes versions of the resource; by default each object gets a new one.

    Example:
        >>> resource = Resource("tokenizer", output_fingerprint="version 1")
        >>> resource == Resource("tokenizer", output_fingerprint="version 2")
        True
        >>> resource.fingerprint()
        'version 1'
    """

    name: str
    output_fingerprint: str = field(default_factory=lambda: uuid.uuid4().hex, compare=False)

    @checked()
    def fingerprint(self) -> str:
        """The fingerprint that distinguishes versions of this resource."""
        return self.output_fingerprint

    def __dsnb_fingerprint__(self) -> Any:
        return self.name, self.output_fingerprint

    def to_cache(self, directory: Path, model_storage: ModelStorage) -> None:
        """Copy the resource's folder out of the storage. Links in it are replaced by the contents they lead to.

        A resource that was never written is stored as an empty folder.
        """
        try:
            with model_storage.read_from(self) as source:
                shutil.copytree(source, directory, dirs_exist_ok=True)
        except (NotFoundError, ValueError):  # a user's own storage class may raise ValueError for a missing one
            return

    @classmethod
    def from_cache(
        cls, node_name: str, directory: Path, model_storage: ModelStorage, output_fingerprint: str
    ) -> Resource:
        """Copy a stored folder into the storage, under the name `node_name`.

        Raises:
            AlreadyExistsError: the storage has other contents under that name; they are not changed.
        """
        resource = cls(node_name, output_fingerprint)
        if not any(directory.iterdir()):
            return resource
        with model_storage.write_to(resource) as target:
            if not any(target.iterdir()):
                shutil.copytree(directory, target, dirs_exist_ok=True)
            elif hash_folder(str(target)).digest != hash_folder(str(directory)).digest:
                raise AlreadyExistsError(
                    f"the model storage has another {node_name!r} already, in {str(target)!r}",
                    did="nothing in it was changed",
                    hint="use a new ModelStorage, or remove that folder",
                )
        return resource


_RESOURCE = instance(Resource, hint='pass dsnb.cache.Resource(name="weights")')


class ModelStorage:
    """A folder with one subfolder for each resource of a model in training.

    Args:
        directory: The folder; created when something is first written.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> storage = ModelStorage(f"{folder.name}/model-7")
        >>> with storage.write_to(Resource("weights")) as directory:
        ...     np.save(directory / "w.npy", np.arange(3))
        >>> with storage.read_from(Resource("weights")) as directory:
        ...     np.load(directory / "w.npy").tolist()
        [0, 1, 2]
        >>> folder.cleanup()
    """

    @checked(directory=path)
    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory).absolute()

    def __repr__(self) -> str:
        return f"ModelStorage({str(self.directory)!r})"

    @checked(resource=_RESOURCE)
    @contextmanager
    def write_to(self, resource: Resource) -> Iterator[Path]:
        """The resource's folder, to write to, with its existing content; created if it does not exist."""
        path = self._path(resource)
        path.mkdir(parents=True, exist_ok=True)
        yield path

    @checked(resource=_RESOURCE)
    @contextmanager
    def read_from(self, resource: Resource) -> Iterator[Path]:
        """The resource's folder, to read from.

        Raises:
            NotFoundError: nothing was written under this name.
        """
        path = self._path(resource)
        if not path.is_dir():
            raise NotFoundError(
                f"the model storage {str(self.directory)!r} has no resource {resource.name!r}",
                hint="write it first, with `write_to`; a restored result brings its resource along",
            )
        yield path

    def _path(self, resource: Resource) -> Path:
        return self.directory / resource.name
