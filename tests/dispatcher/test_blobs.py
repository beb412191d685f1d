"""Big captured arrays are kept once, by what they contain, and go with the last dataset that needs them."""

from __future__ import annotations

import pytest

from dsnb.dispatcher.blobs import PIECE, BlobStore
from dsnb.errors import DataLossError, NotFoundError
from dsnb.wire.messages import BlobPiece


@pytest.mark.parametrize("nbytes", [0, 1, PIECE, PIECE + 1, 3 * PIECE + 5])
def test_what_is_sent_in_pieces_arrives_whole(nbytes: int) -> None:
    data = bytes(range(256)) * (nbytes // 256 + 1)
    there, here = BlobStore(), BlobStore()
    there.put("digest", data[:nbytes])
    pieces = list(there.send("digest"))
    assert all(len(piece.data) <= PIECE for piece in pieces)
    here.receive(iter(pieces))
    assert bytes(here.get("digest")) == data[:nbytes]


def test_a_blob_that_broke_off_is_not_kept() -> None:
    store = BlobStore()
    with pytest.raises(DataLossError, match="a blob of 10 bytes arrived with 4"):
        store.receive(iter([BlobPiece(digest="digest", nbytes=10, data=b"four")]))
    assert store.missing(("digest",)) == ("digest",)


def test_only_what_is_missing_is_asked_for() -> None:
    store = BlobStore()
    store.put("a", b"1")
    assert store.missing(("a", "b")) == ("b",)


def test_what_no_dataset_needs_is_let_go() -> None:
    store = BlobStore()
    store.put("a", b"1")
    store.put("b", b"2")
    store.keep_only({"b"})
    assert bytes(store.get("b")) == b"2"
    with pytest.raises(NotFoundError, match="does not hold the blob a"):
        store.get("a")


def test_one_definition_has_one_digest() -> None:
    store = BlobStore()
    assert store.put_definition(b"pipeline") == store.put_definition(b"pipeline")
    assert store.put_definition(b"pipeline") != store.put_definition(b"another")
