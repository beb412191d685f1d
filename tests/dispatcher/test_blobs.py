from __future__ import annotations

import resource
import signal
import threading
from pathlib import Path

import pytest

from dsnb.dispatcher.blobs import BlobStore
from dsnb.errors import DataLossError, DsnbError, InvalidArgumentError, NotFoundError
from dsnb.storage.process_identity import this_process
from dsnb.wire.blobs import PIECE_BYTES, blob_digest, blob_pieces
from dsnb.wire.messages import BlobPiece

A, B, C, D = (blob_digest(data) for data in (b"a", b"b", b"c", b"some bytes"))


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs" if request.param == "file" else None)


def test_a_definition_is_kept_by_what_it_contains(store: BlobStore) -> None:
    assert store.put_definition(b"one") == store.put_definition(b"one")
    assert store.put_definition(b"one") != store.put_definition(b"two")
    assert bytes(store.get(store.put_definition(b"two"))) == b"two"


def test_what_is_not_here_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(NotFoundError, match="does not hold the blob nowhere") as caught:
        BlobStore().get("nowhere")
    assert "register the dataset again" in caught.value.hint


def test_only_what_is_missing_is_asked_for_in_the_order_given(store: BlobStore) -> None:
    store.put(B, b"b")
    assert store.missing((C, B, A)) == (C, A)


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES])
def test_a_blob_travels_in_pieces_and_arrives_whole(size: int, store: BlobStore) -> None:
    sender, receiver = BlobStore(), store
    data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    digest = sender.put_definition(data)
    pieces = list(sender.send(digest))
    assert all(len(piece.data) <= PIECE_BYTES for piece in pieces)
    assert {piece.nbytes for piece in pieces} == {size}
    receiver.receive(iter(pieces))
    assert bytes(receiver.get(digest)) == data
    assert b"".join(piece.data for piece in receiver.send(digest)) == data


def test_a_blob_that_came_in_part_is_not_kept(store: BlobStore) -> None:
    pieces = [BlobPiece(digest=D, nbytes=6, data=b"abc"), BlobPiece(digest=D, nbytes=6, data=b"de")]
    with pytest.raises(DataLossError, match="a blob of 6 bytes arrived with 5"):
        store.receive(iter(pieces))
    assert store.missing((D,)) == (D,)


def test_a_blob_of_which_nothing_came_is_an_error() -> None:
    with pytest.raises(DataLossError, match="without a piece"):
        BlobStore().receive(iter(()))


def test_what_no_dataset_has_is_let_go(store: BlobStore) -> None:
    for data in (b"a", b"b", b"c"):
        store.put_definition(data)
    store.keep_only({B, "elsewhere"})
    assert store.missing((A, B, C)) == (A, C)


def test_two_clients_that_send_one_blob_at_once_leave_it_whole(store: BlobStore) -> None:
    data = b"x" * (2 * PIECE_BYTES)
    source = BlobStore()
    digest = source.put_definition(data)
    threads = [threading.Thread(target=lambda: store.receive(source.send(digest))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bytes(store.get(digest)) == data


def test_what_lies_in_a_folder_is_there_again_and_what_a_killed_process_half_wrote_is_removed(tmp_path: Path) -> None:
    BlobStore(tmp_path / "blobs").put(D, b"some bytes")
    place, _, started = this_process().unique_id().split("-")
    (tmp_path / "blobs" / f".aside-{place}-{2**22 + 1}-{started}-0123abcd").write_bytes(b"so")
    store = BlobStore(tmp_path / "blobs")
    assert bytes(store.get(D)) == b"some bytes"
    assert [path.name for path in (tmp_path / "blobs").iterdir()] == [D]


def test_what_is_let_go_stays_with_whoever_has_it(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    store.put(D, b"some bytes")
    held = store.get(D)
    store.keep_only(set())
    assert bytes(held) == b"some bytes"
    assert store.missing((D,)) == (D,)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_somebody_removed_is_not_found(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    store.put(D, b"some bytes")
    (tmp_path / D).unlink()
    with pytest.raises(NotFoundError, match=f"does not hold the blob {D}"):
        store.get(D)


@pytest.mark.parametrize("bit", [0, 37, 79])
def test_a_blob_with_a_flipped_bit_is_never_given_out_and_is_asked_for_again(tmp_path: Path, bit: int) -> None:
    store = BlobStore(tmp_path)
    store.put(D, b"some bytes")
    data = bytearray((tmp_path / D).read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    (tmp_path / D).write_bytes(data)
    for read in (store.get, lambda digest: list(store.send(digest))):
        with pytest.raises((DataLossError, NotFoundError)):
            read(D)
    assert store.missing((D,)) == (D,)
    store.receive(blob_pieces(D, b"some bytes"))
    assert bytes(store.get(D)) == b"some bytes"


@pytest.mark.parametrize("data", [b"", b"some byte", b"some bytes and more"])
def test_a_blob_that_was_cut_or_has_grown_is_an_error(tmp_path: Path, data: bytes) -> None:
    BlobStore(tmp_path).put(D, b"some bytes")
    (tmp_path / D).write_bytes(data)
    with pytest.raises(DataLossError, match=rf"{D} is in .* damaged"):
        BlobStore(tmp_path).get(D)


def test_a_blob_that_arrives_with_other_bytes_is_not_kept(store: BlobStore) -> None:
    with pytest.raises(DataLossError, match="arrived damaged"):
        store.receive(blob_pieces(D, b"some bytez"))
    assert store.missing((D,)) == (D,)


def test_a_write_that_fails_leaves_no_file_and_the_next_registration_works(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        with pytest.raises(DsnbError, match=r"keeping a pipeline in .* failed") as refused:
            store.put_definition(bytes(2000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert refused.value.did == "it was not registered"
    assert list(tmp_path.iterdir()) == []
    assert bytes(store.get(store.put_definition(bytes(2000)))) == bytes(2000)


def test_files_of_others_in_the_folder_are_no_blobs_and_stay(tmp_path: Path) -> None:
    folder = tmp_path / "blobs"
    folder.mkdir()
    names = ["notes.txt", ".aside-notes", ".tmp1234", "0" * 32, "f" * 40]
    for name in names:
        (folder / name).write_text("mine")
    (folder / D).mkdir()
    (folder / A).symlink_to(folder / "notes.txt")
    store = BlobStore(folder)
    store.put_definition(b"b")
    store.keep_only(set())
    assert sorted(path.name for path in folder.iterdir()) == sorted([*names, D, A])
    assert all((folder / name).read_text() == "mine" for name in names)


@pytest.mark.parametrize("digest", ["../outside", "", "a/b", ".", "d", "A" * 32])
def test_a_digest_names_no_other_file(digest: str, store: BlobStore) -> None:
    with pytest.raises(InvalidArgumentError, match="is no digest"):
        store.put(digest, b"")
