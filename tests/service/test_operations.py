"""Each operation does on workers what it does here, in both modes; shared splits are worked on once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsnb
from tests.pipeline.driving import plain, values
from tests.support.cluster import Cluster
from tests.support.transfers import TRANSFERS

NUMBERS = dsnb.Dataset.range(60)
ROWS = NUMBERS.map(lambda x: np.array([x, *[-1] * (x % 5)]))


def swapped(total: Any, x: Any) -> tuple[Any, Any]:
    return total + 1, x


OPERATIONS: dict[str, dsnb.Dataset] = {
    "padded_batch": ROWS.padded_batch(7, padding_values=-1),
    "rebatch": NUMBERS.batch(7).rebatch([3, 2]),
    "window": NUMBERS.window(4).flat_map(lambda window: window.batch(4)),
    "group_by_window": NUMBERS.group_by_window(lambda x: x % 3, lambda key, window: window.batch(4), 4),
    "bucket_by_sequence_length": ROWS.bucket_by_sequence_length(len, [2, 4], [4, 3, 2], padding_values=-1),
    "scan": NUMBERS.scan(0, swapped),
    "unique": NUMBERS.unique(),
    "choose_from_datasets": dsnb.Dataset.choose_from_datasets(
        [dsnb.Dataset.range(30), dsnb.Dataset.range(30, 60)], dsnb.Dataset.range(2).repeat(), False
    ),
    "sample_from_datasets": dsnb.Dataset.sample_from_datasets(
        [dsnb.Dataset.range(20), dsnb.Dataset.range(20, 60)], [0.3, 0.7], seed=4
    ),
    "with_options": NUMBERS.with_options(dsnb.Options(deterministic=True, writable=True)),
    "take_while": NUMBERS.take_while(lambda x: x < 60),
    "shard": dsnb.Dataset.range(120).shard(2, 0).map(lambda x: x // 2),
}
DIVIDED_BY_PLACE = {"shard"}
"""What each of several tasks counts for itself."""


def leaves(elements: list[Any]) -> Counter[int]:
    """How often each number came; what was filled up is not counted."""
    found = np.concatenate([np.ravel(element) for element in elements])
    return Counter(found[found >= 0].tolist())


@pytest.mark.slow
@pytest.mark.parametrize("protocol", TRANSFERS)
def test_one_worker_gives_what_is_given_here(protocol: str) -> None:
    with Cluster(1) as cluster:
        for mode in ("parallel_epochs", "distributed_epoch"):
            distribute = dsnb.distribute(mode, cluster.service, data_transfer_protocol=protocol)
            for name, dataset in OPERATIONS.items():
                assert values(dataset.apply(distribute)) == values(dataset), (name, mode)


def test_several_workers_give_each_element_once_in_dynamic_mode_and_each_all_of_them_in_off_mode() -> None:
    with Cluster(2) as cluster:
        for name, dataset in OPERATIONS.items():
            whole = list(dataset.apply(dsnb.distribute("parallel_epochs", cluster.service)))
            assert leaves(whole) == Counter(dict.fromkeys(range(60), 2)), name
            if name not in DIVIDED_BY_PLACE:
                shared = list(dataset.apply(dsnb.distribute("distributed_epoch", cluster.service)))
                assert leaves(shared) == Counter(range(60)), name


def test_records_of_files_come_once_and_damage_is_told(tmp_path: Path) -> None:
    spec = {"x": dsnb.TensorSpec((None,), "int64"), "name": dsnb.TensorSpec((), str)}
    for file in range(4):
        with dsnb.TFRecordWriter(tmp_path / f"{file}.tfrecord.gz") as writer:
            for row in range(5):
                number = 5 * file + row
                writer.write(dsnb.serialize_example({"x": np.arange(number), "name": f"row {number}"}))
    files = sorted(map(str, tmp_path.iterdir()))
    examples = dsnb.TFRecordDataset(files).map(lambda record: dsnb.parse_example(record, spec))
    with Cluster(2) as cluster:
        found = [plain(x) for x in examples.apply(dsnb.distribute("distributed_epoch", cluster.service))]
        assert sorted(element["name"] for element in found) == sorted(f"row {number}" for number in range(20))
        assert all(len(element["x"]) == int(element["name"].split()[1]) for element in found)

        Path(files[0]).write_bytes(b"nothing of the kind")
        with pytest.raises(dsnb.errors.DataLossError) as caught:
            list(dsnb.TFRecordDataset(files[:1]).apply(dsnb.distribute("parallel_epochs", cluster.service)))
        assert files[0] in str(caught.value)


def test_a_window_that_would_be_sent_is_refused_with_advice() -> None:
    with Cluster(1) as cluster:
        windows = NUMBERS.window(4).apply(dsnb.distribute("parallel_epochs", cluster.service))
        with pytest.raises(dsnb.errors.InvalidArgumentError, match="flat_map"):
            next(iter(windows))


def test_elements_of_small_dtypes_come_through_a_service() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    dataset = (
        dsnb.Dataset.range(20).map(lambda x: {"half": np.full(3, x, ml_dtypes.bfloat16), "n": np.int8(x)}).batch(4)
    )
    with Cluster(1) as cluster:
        found = list(dataset.apply(dsnb.distribute("parallel_epochs", cluster.service, data_transfer_protocol="grpc")))
    assert {element["half"].dtype for element in found} == {np.dtype(ml_dtypes.bfloat16)}
    assert [row[0] for element in found for row in element["half"].astype(int)] == list(range(20))


def test_the_spec_of_what_workers_make_is_known_once_an_element_was_seen() -> None:
    with dsnb.start(workers=1) as service:
        pairs = dsnb.Dataset.range(8).map(lambda x: {"x": np.zeros(4, np.float32), "y": x})
        read = pairs.apply(dsnb.distribute("distributed_epoch", service))
        assert read.element_spec is None
        with iter(read) as elements:
            next(elements)
        assert read.element_spec == {"x": dsnb.TensorSpec((4,), "float32"), "y": dsnb.TensorSpec((), "int64")}
