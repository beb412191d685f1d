from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dsnb.cache.results.model_storage import ModelStorage, Resource
from dsnb.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError


def written(storage: ModelStorage, name: str, **files: str) -> Resource:
    """A resource with these files."""
    resource = Resource(name)
    with storage.write_to(resource) as directory:
        for file, text in files.items():
            (directory / file).write_text(text)
    return resource


def files_of(storage: ModelStorage, resource: Resource) -> dict[str, str]:
    with storage.read_from(resource) as directory:
        return {path.name: path.read_text() for path in directory.iterdir()}


def test_what_was_written_can_be_read(tmp_path: Path) -> None:
    resource = written(ModelStorage(tmp_path / "model"), "weights", w="1")
    assert files_of(ModelStorage(tmp_path / "model"), resource) == {"w": "1"}


def test_what_was_not_written_is_not_found(tmp_path: Path) -> None:
    with (
        pytest.raises(NotFoundError, match="has no resource 'weights'"),
        ModelStorage(tmp_path).read_from(Resource("weights")),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", "a\0", None])
def test_a_resource_s_name_leads_nowhere_else(tmp_path: Path, name: Any) -> None:
    with pytest.raises(InvalidArgumentError), ModelStorage(tmp_path).write_to(Resource(name)):
        pass


def test_a_resource_takes_its_name_first_and_each_has_a_fingerprint_of_its_own() -> None:
    one, other = Resource("tokenizer"), Resource("tokenizer")
    assert one.name == "tokenizer"
    assert one.fingerprint() == one.output_fingerprint != other.fingerprint()
    assert len({Resource("r").fingerprint() for _ in range(1000)}) == 1000
    assert (
        Resource("tokenizer", "f").fingerprint() == Resource("tokenizer", output_fingerprint="f").fingerprint() == "f"
    )


def test_resources_are_equal_by_name_whatever_their_fingerprints(tmp_path: Path) -> None:
    first, second = ModelStorage(tmp_path / "first"), ModelStorage(tmp_path / "second")
    resource = written(first, "r", a="b")
    (tmp_path / "stored").mkdir()
    resource.to_cache(tmp_path / "stored", first)
    restored = Resource.from_cache("r", tmp_path / "stored", second, "another fingerprint")
    assert restored == resource
    assert hash(restored) == hash(resource)
    assert restored.fingerprint() == "another fingerprint"
    assert restored != Resource("s")
    assert files_of(second, restored) == {"a": "b"}


def test_a_restored_resource_never_overwrites_what_is_there(tmp_path: Path) -> None:
    stored, storage = tmp_path / "stored", ModelStorage(tmp_path / "model")
    stored.mkdir()
    (stored / "new").write_text("new")
    resource = written(storage, "r", old="mine")
    with pytest.raises(AlreadyExistsError, match="has another 'r' already") as refused:
        Resource.from_cache("r", stored, storage, "f")
    assert refused.value.did == "nothing in it was changed"
    assert files_of(storage, resource) == {"old": "mine"}


def test_a_resource_that_is_there_already_with_the_same_contents_is_restored(tmp_path: Path) -> None:
    stored, storage = tmp_path / "stored", ModelStorage(tmp_path / "model")
    stored.mkdir()
    (stored / "a").write_text("b")
    resource = written(storage, "r", a="b")
    assert Resource.from_cache("r", stored, storage, "f") == resource


def test_a_resource_that_was_never_written_is_stored_as_empty_and_restored_without_a_folder(tmp_path: Path) -> None:
    (tmp_path / "stored").mkdir()
    Resource("r").to_cache(tmp_path / "stored", ModelStorage(tmp_path / "model"))
    assert list((tmp_path / "stored").iterdir()) == []
    assert Resource.from_cache("r", tmp_path / "stored", ModelStorage(tmp_path / "other"), "f") == Resource("r")
    assert not (tmp_path / "other").exists()


def test_a_stored_resource_holds_the_contents_of_what_its_links_lead_to(tmp_path: Path) -> None:
    storage = ModelStorage(tmp_path / "model")
    (tmp_path / "data").write_text("as it was")
    resource = written(storage, "r")
    with storage.write_to(resource) as directory:
        (directory / "link").symlink_to(tmp_path / "data")
    (tmp_path / "stored").mkdir()
    resource.to_cache(tmp_path / "stored", storage)
    (tmp_path / "data").write_text("as it is now")
    assert (tmp_path / "stored" / "link").read_text() == "as it was"


class Minimal:
    """A user's own storage, with the two methods that the original declares, and its error."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @contextmanager
    def write_to(self, resource: Resource) -> Iterator[Path]:
        (self._directory / resource.name).mkdir(parents=True, exist_ok=True)
        yield self._directory / resource.name

    @contextmanager
    def read_from(self, resource: Resource) -> Iterator[Path]:
        if not (self._directory / resource.name).exists():
            raise ValueError("it does not exist")
        yield self._directory / resource.name


def test_a_resource_asks_a_storage_for_nothing_but_the_two_declared_methods(tmp_path: Path) -> None:
    storage: Any = Minimal(tmp_path / "model")
    (tmp_path / "stored").mkdir()
    Resource("none").to_cache(tmp_path / "stored", storage)
    assert list((tmp_path / "stored").iterdir()) == []
    resource = written(storage, "r", a="b")
    resource.to_cache(tmp_path / "stored", storage)
    restored = Resource.from_cache("r", tmp_path / "stored", Minimal(tmp_path / "other"), "f")  # type: ignore[arg-type]
    assert restored == resource
    assert (tmp_path / "other" / "r" / "a").read_text() == "b"


def test_a_storage_keeps_its_place_when_the_working_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    storage = ModelStorage("model")
    monkeypatch.chdir("/")
    assert storage.directory == tmp_path / "model"
