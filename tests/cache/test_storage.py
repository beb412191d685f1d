from __future__ import annotations

from pathlib import Path

import pytest

from dsnb.cache.storage import ModelStorage, Resource
from dsnb.errors import InvalidArgumentError, NotFoundError


def test_what_was_written_can_be_read(tmp_path: Path) -> None:
    storage = ModelStorage(tmp_path / "model")
    resource = Resource(name="weights")
    assert not storage.has(resource)
    with storage.write_to(resource) as directory:
        (directory / "w").write_text("1")
    with ModelStorage(tmp_path / "model").read_from(resource) as directory:
        assert (directory / "w").read_text() == "1"


def test_what_was_not_written_is_not_found(tmp_path: Path) -> None:
    with (
        pytest.raises(NotFoundError, match="has no resource 'weights'"),
        ModelStorage(tmp_path).read_from(Resource(name="weights")),
    ):
        pass


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", "a\0"])
def test_a_resource_s_name_leads_nowhere_else(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidArgumentError), ModelStorage(tmp_path).write_to(Resource(name=name)):
        pass


def test_a_restored_resource_takes_the_place_of_what_was_there(tmp_path: Path) -> None:
    stored, storage = tmp_path / "stored", ModelStorage(tmp_path / "model")
    stored.mkdir()
    (stored / "new").write_text("new")
    with storage.write_to(Resource(name="r")) as directory:
        (directory / "old").write_text("old")
        (directory / "folder").mkdir()
    restored = Resource.from_cache("r", stored, storage, "f")
    with storage.read_from(restored) as directory:
        assert [path.name for path in directory.iterdir()] == ["new"]


def test_a_resource_that_was_never_written_is_stored_as_empty(tmp_path: Path) -> None:
    Resource(name="r").to_cache(tmp_path, ModelStorage(tmp_path / "model"))
    assert list(tmp_path.iterdir()) == []


def test_a_storage_keeps_its_place_when_the_working_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    storage = ModelStorage("model")
    monkeypatch.chdir("/")
    assert storage.directory == tmp_path / "model"
