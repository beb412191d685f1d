"""A data service for machine-learning input pipelines that starts from a notebook cell.

One cell starts a dispatcher and workers inside the kernel. Any number of trainers (other cells, kernels or machines)
read preprocessed elements from them, and the trainers of one job share one preprocessing pass.

Example:
    >>> import dsnb
    >>> with dsnb.start(workers=2) as service:
    ...     squares = dsnb.Dataset.range(10).map(lambda x: x * x)
    ...     squares = squares.apply(dsnb.distribute("distributed_epoch", service))
    ...     sum(squares)
    285

Names are imported on first use: `import dsnb` starts nothing and takes milliseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsnb import cache as cache
    from dsnb import errors as errors
    from dsnb import launchers as launchers
    from dsnb import testing as testing
    from dsnb.client.distribute import distribute as distribute
    from dsnb.client.distribute import from_dataset_id as from_dataset_id
    from dsnb.client.distribute import register_dataset as register_dataset
    from dsnb.client.options import ShardingPolicy as ShardingPolicy
    from dsnb.client.trainer_cache import CrossTrainerCache as CrossTrainerCache
    from dsnb.dispatcher.config import DispatcherConfig as DispatcherConfig
    from dsnb.dispatcher.server import DispatchServer as DispatchServer
    from dsnb.elements.spec import TensorSpec as TensorSpec
    from dsnb.errors import DataLossWarning as DataLossWarning
    from dsnb.notebook.connect import connect as connect
    from dsnb.notebook.progress import progress as progress
    from dsnb.notebook.service import DataService as DataService
    from dsnb.notebook.start import start as start
    from dsnb.pipeline.dataset import Dataset as Dataset
    from dsnb.pipeline.file_datasets import ParquetDataset as ParquetDataset
    from dsnb.pipeline.file_datasets import TextLineDataset as TextLineDataset
    from dsnb.pipeline.file_datasets import TFRecordDataset as TFRecordDataset
    from dsnb.pipeline.file_datasets import WebDataset as WebDataset
    from dsnb.pipeline.operation import INFINITE_CARDINALITY as INFINITE_CARDINALITY
    from dsnb.pipeline.operation import UNKNOWN_CARDINALITY as UNKNOWN_CARDINALITY
    from dsnb.pipeline.operations.shard import SHARD_HINT as SHARD_HINT
    from dsnb.pipeline.operations.with_options import Options as Options
    from dsnb.pipeline.tfrecord.example import parse_example as parse_example
    from dsnb.pipeline.tfrecord.example import serialize_example as serialize_example
    from dsnb.pipeline.tfrecord.writer import TFRecordWriter as TFRecordWriter
    from dsnb.pipeline.validate import AUTOTUNE as AUTOTUNE
    from dsnb.worker.config import WorkerConfig as WorkerConfig
    from dsnb.worker.server import WorkerServer as WorkerServer

__version__ = "0.1.0"

# The module of each public name. tests/test_exports.py checks that this and the imports above agree.
_HOMES = {
    "AUTOTUNE": "dsnb.pipeline.validate",
    "INFINITE_CARDINALITY": "dsnb.pipeline.operation",
    "SHARD_HINT": "dsnb.pipeline.operations.shard",
    "UNKNOWN_CARDINALITY": "dsnb.pipeline.operation",
    "CrossTrainerCache": "dsnb.client.trainer_cache",
    "DataLossWarning": "dsnb.errors",
    "DataService": "dsnb.notebook.service",
    "Dataset": "dsnb.pipeline.dataset",
    "DispatchServer": "dsnb.dispatcher.server",
    "DispatcherConfig": "dsnb.dispatcher.config",
    "Options": "dsnb.pipeline.operations.with_options",
    "ParquetDataset": "dsnb.pipeline.file_datasets",
    "ShardingPolicy": "dsnb.client.options",
    "TFRecordDataset": "dsnb.pipeline.file_datasets",
    "TFRecordWriter": "dsnb.pipeline.tfrecord.writer",
    "TensorSpec": "dsnb.elements.spec",
    "TextLineDataset": "dsnb.pipeline.file_datasets",
    "WebDataset": "dsnb.pipeline.file_datasets",
    "WorkerConfig": "dsnb.worker.config",
    "WorkerServer": "dsnb.worker.server",
    "cache": "dsnb.cache",
    "connect": "dsnb.notebook.connect",
    "distribute": "dsnb.client.distribute",
    "errors": "dsnb.errors",
    "from_dataset_id": "dsnb.client.distribute",
    "launchers": "dsnb.launchers",
    "parse_example": "dsnb.pipeline.tfrecord.example",
    "progress": "dsnb.notebook.progress",
    "register_dataset": "dsnb.client.distribute",
    "serialize_example": "dsnb.pipeline.tfrecord.example",
    "start": "dsnb.notebook.start",
    "testing": "dsnb.testing",
}

__all__ = (  # noqa: PLE0604 - the keys of `_HOMES` are strings, which ruff cannot see
    *_HOMES,
    "__version__",
)


def __getattr__(name: str) -> Any:
    from importlib import import_module

    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'dsnb' has no attribute {name!r}", name=name, obj=import_module(__name__))
    module = import_module(home)
    value = module if home == f"{__name__}.{name}" else getattr(module, name)
    globals()[name] = value  # the next access finds it without this function
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
