"""Calls of everything public with right, odd and wrong arguments, drawn at random, and what may come of each.

A call is drawn from the public signatures: for each parameter its default, a right value by its name, or any value at
all. It is refused well if the error is dsnb's own and names an argument of the call; it is accepted well if what it
gave can be used: a dataset is read for a few elements, a configuration starts its server. Whatever is started is
stopped. A call that takes longer than `LIMIT_S` hangs.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import inspect
import io
import itertools
import math
import random
import re
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import dsnb
from dsnb.cli import main, make_parser
from dsnb.errors import DsnbError
from dsnb.notebook.service import DataService
from dsnb.pipeline.engine.iterator import ElementIterator
from tests.support.cluster import Cluster
from tests.support.public_api import public_callables

LIMIT_S = 20.0
_READ = 4
_MAX_REPR = 80
_DISTRIBUTED = 0.2
"""The part of the accepted datasets that is read through the service as well."""


class HungError(BaseException):
    """A call did not return."""


class UserFunctionError(Exception):
    """Raised by a function of the user's, on purpose."""


class Odd:
    """An object of the user's that takes part in nothing."""

    def __repr__(self) -> str:
        raise UserFunctionError


def fails(*_: Any) -> Any:
    """A function of the user's that fails."""
    raise UserFunctionError("on purpose")


def pair(a: Any, b: Any) -> Any:
    return a, b


def _self_containing_list() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@dataclass
class FuzzEnvironment:
    """What calls are made in: a folder of its own, and a service with one worker."""

    folder: Path
    cluster: Cluster
    cleanup: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __post_init__(self) -> None:
        for folder in (self.folder, self.folder.parent):  # calls may overwrite what lies in the first
            (folder / "lines.txt").write_text("one\ntwo\n")
        with dsnb.TFRecordWriter(self.folder.parent / "records") as writer:
            writer.write(dsnb.serialize_example({"x": [1, 2]}))
        (self.folder / "empty").mkdir(exist_ok=True)

    def any_values(self) -> list[Any]:
        """Any value at all."""
        return [*_NUMBERS, *_TEXTS, *_FUNCTIONS, *_objects(), *self.paths(), *self.datasets(), self.cluster.service]

    def paths(self) -> list[Any]:
        """What may and may not be a path."""
        folder = self.folder
        return [
            "", ".", "..", "~", "a\0b", b"bytes", b"", 0, 1, 2, 3, 10**9, -1, Path("lines.txt"), Path("nowhere/x"),
            "new", "new/deep", folder / "empty", "/dev/null", "/proc/x", "x" * 300, "übung", "訓練", "a b",
            "lines.txt", "*.txt", "[", "redis://", "redis://host:port/0", "s3://", "://", "memory://x", "file:///",
        ]  # fmt: skip

    def datasets(self) -> list[dsnb.Dataset]:
        """Datasets of all kinds, none of them endless."""
        ds = dsnb.Dataset
        return [
            ds.range(5), ds.range(0), ds.range(2).map(lambda x: x), ds.from_tensor_slices(["a", "b\0"]),
            ds.from_tensor_slices({"x": [1.5, 2.5], "y": [[1], [2]]}), ds.zip(ds.range(3), ds.range(3)),
            ds.range(3).map(fails), ds.range(7).batch(3), ds.range(5).window(2), ds.from_tensors((None, 1)),
            ds.range(1, 4).map(lambda n: np.zeros(int(n))), dsnb.TextLineDataset(self.folder.parent / "lines.txt"),
            dsnb.TFRecordDataset(self.folder.parent / "records"), ds.from_generator(lambda: iter([b"x", "y", 3])),
        ]  # fmt: skip

    def plausible_values(self, name: str, parameter: str) -> Sequence[Any]:
        """Values of which most are right for that parameter of that function."""
        if f"{name} {parameter}" in _PLAUSIBLE_VALUES:
            return _PLAUSIBLE_VALUES[f"{name} {parameter}"]
        if parameter in _PLAUSIBLE_VALUES:
            return _PLAUSIBLE_VALUES[parameter]
        made: dict[str, Callable[[], Sequence[Any]]] = {
            "dataset": self.datasets, "choice_dataset": self.datasets, "datasets": lambda: [self.datasets()[:1]],
            "elements": self.datasets, "service": lambda: [self.cluster.service, self.cluster.address],
            "target": lambda: [self.cluster.dispatcher.target], "dispatcher_address": lambda: [self.cluster.address],
            "path": self.paths, "directory": self.paths, "where": self.paths, "work_dir": lambda: ["work", None],
            "file_pattern": self.paths, "filenames": self.paths, "config": self._configs,
            "dataset_id": lambda: ["1000", "mine", "nowhere"],
            "resource": lambda: [dsnb.cache.Resource(name="weights")],
            "model_storage": lambda: [dsnb.cache.ModelStorage("models")], "cache": lambda: [None],
            "state": lambda: [iter(dsnb.Dataset.range(3)).state_dict(), {}],
        }  # fmt: skip
        return made[parameter]() if parameter in made else [0, 1, 2, "a", None, True]

    def _configs(self) -> list[Any]:
        token = self.cluster.dispatcher.token
        return [dsnb.DispatcherConfig(), dsnb.WorkerConfig(self.cluster.address, token=token), None]

    def receiver(self, name: str) -> Any:
        """What a method is called on."""
        kind = name.partition(".")[0]
        if kind == "Dataset":
            return random_of(self.datasets(), name)
        if kind == "DataService":
            return self.cluster.service
        return _RECEIVERS[kind](self)


def random_of(values: Sequence[Any], _name: str) -> Any:
    """One of several; by the module's generator, which `calls` seeds."""
    return _random.choice(values)


_random = random.Random()

_NUMBERS: list[Any] = [
    0, 1, -1, -2, 2, 3, 100, 2**31, 2**63 - 1, 2**63, -(2**63), 10**30, 10**400, 1.0, 1.5, -0.5, 1e-300, 1e300,
    math.nan, math.inf, -math.inf, np.int32(2), np.uint8(200), np.int64(-1), np.float32(0.5), np.float64("nan"),
    np.bool_(True), True, False, np.array(3), np.array([1, 2]), np.datetime64("NaT"), Decimal(2), Fraction(1, 2), 1j,
]  # fmt: skip
_TEXTS: list[Any] = [
    "", "a", "x" * 100_000, "a\0b", "a\nb", "\ud800", "訓練", "🙂", "../x", b"", b"bytes", "localhost", "a:b",
    "x:99999", "grpc://a://1:1", "http://127.0.0.1:1", "nan", "AUTO", "auto", "thread", "default", np.str_("np"),
]  # fmt: skip
_FUNCTIONS: list[Any] = [
    lambda: 0, lambda x: x, pair, lambda *a: a, lambda x, *, k: x, abs, int, len, np.square, fails, str.upper, print,
    functools.partial(pair, 1), dsnb.Dataset.range, Odd, lambda x: dsnb.Dataset.range(2), lambda *a: None,
]  # fmt: skip


def _objects() -> list[Any]:
    return [
        None, [], (), {}, [1], [1, "a"], [[1], [1, 2]], {"a": 1}, {1: 2}, set(), {1, 2}, range(3), iter([1, 2]),
        itertools.count(), _self_containing_list(), object(), Odd(), Ellipsis, NotImplemented, int, math, [None],
        [b"a", b"b"],
        np.zeros((2, 3)), np.array([object()]), np.ma.array([1], mask=[True]), memoryview(b"x"), bytearray(b"x"),
        dsnb.TensorSpec(), (dsnb.TensorSpec((None,)), dsnb.TensorSpec()), dsnb.Options(), dsnb.CrossTrainerCache("t"),
        dsnb.DispatcherConfig(), dsnb.ShardingPolicy.OFF, dsnb.ShardingPolicy.DYNAMIC, dsnb.errors.DsnbError("x"),
        dsnb.AUTOTUNE, dsnb.SHARD_HINT,
    ]  # fmt: skip


_TIMES: list[Any] = [
    0.01,
    1e-9,
    0,
    -1,
    math.nan,
    math.inf,
    "1",
    None,
    True,
    10**400,
    1e300,
    np.float32(0.01),
    b"",
    2**63,
]
_MILLISECONDS: list[Any] = [1, 50, np.int64(20), 0, -1, 1.5, math.nan, "1", None, True, 2**63, 10**400]
_JOBS: list[Any] = ["job", "other", "", None, 3, "a\nb", "訓練"]
_PLAUSIBLE_VALUES: dict[str, Sequence[Any]] = {
    # Times are never long: a call that waits for as long as it was told to is right.
    "seconds": _TIMES, "timeout": _TIMES, "every": _TIMES, "lease_seconds": _TIMES, "expire_seconds": _TIMES,
    "heartbeat_interval_ms": _MILLISECONDS, "dispatcher_timeout_ms": _MILLISECONDS, "worker_timeout_ms": _MILLISECONDS,
    "client_timeout_ms": _MILLISECONDS, "reconnect_ms": _MILLISECONDS, "consumer_timeout_ms": _MILLISECONDS,
    "job_gc_check_interval_ms": _MILLISECONDS, "job_gc_timeout_ms": [*_MILLISECONDS, -1],
    "task_gc_timeout_ms": _MILLISECONDS, "dispatcher_gone_ms": _MILLISECONDS,
    "job_name": _JOBS, "trainer_id": _JOBS, "name": ["fuzz", "übung", None, "default"], "worker": ["w9", "a:1", ""],
    "workers": [0, 1], "isolation": ["thread", "proces", None], "port": [0], "host": ["127.0.0.1", "localhost", "::1"],
    "token": [None, "secret"], "replace": [False], "protocol": ["grpc", None], "start": [True, False],
    "processing_mode": ["parallel_epochs", "distributed_epoch", *dsnb.ShardingPolicy],
    "consumer_index": [None, 0], "num_consumers": [None, 1], "max_outstanding_requests": [None, 1, 100],
    "data_transfer_protocol": [None, "grpc", "tcp", "local", "shared_memory"],
    "compression": ["AUTO", None, "LZ4", "ZSTD"],
    "cross_trainer_cache": [None, dsnb.CrossTrainerCache("t", timeout=1.0)], "target_workers": ["AUTO", "any", "LOCAL"],
    "element_spec": [None, dsnb.TensorSpec((), np.int64)], "on_lag": ["skip", "wait", "spill"],
    "CrossTrainerCache.__init__ start": ["oldest", "newest"], "start_together": [None, 1, 0, -1, 1.5, True, "2", 2**63],
    "map_func": [lambda *x: x[0], abs, fails, dsnb.Dataset.range, lambda *x: dsnb.Dataset.range(2)],
    "Dataset.interleave map_func": [lambda *x: dsnb.Dataset.range(2), fails, abs],
    "Dataset.flat_map map_func": [lambda *x: dsnb.Dataset.range(2), fails, abs],
    "predicate": [lambda *x: True, fails, abs], "scan_func": [pair, fails], "initial_state": [0, (1, 2), "a"],
    "key_func": [lambda *x: 0, fails], "reduce_func": [lambda k, w: w, lambda k, w: w.batch(2), fails, pair],
    "window_size": [None, 1, 2], "window_size_func": [None, lambda k: 2, fails], "element_length_func": [lambda *x: 2],
    "bucket_boundaries": [[3], [1, 2], []], "bucket_batch_sizes": [[2, 2], [1, 2, 3], [1]],
    "transformation_func": [lambda ds: ds.take(2), lambda ds: 3, fails], "generator": [lambda: range(3), fails],
    "args": [(), (1,)], "condition": [lambda status: True, fails], "num_parallel_calls": [None, -1, 1, 2],
    "num_parallel_reads": [None, -1, 2], "cycle_length": [None, -1, 1, 3], "weights": [None, [1.0]],
    "serialized": [dsnb.serialize_example({"x": [1]}), b"", b"\xff"], "record": [b"", b"abc"],
    "features": [{}, {"x": dsnb.TensorSpec((None,), "int64")}, None, {"x": [1, 2]}],
    "height": [-1, 0, "a", None, math.nan, 10**400, True],  # a frame is as tall as it is asked to be
    "function": [pair, len, 3, None], "packages": [(), ["numpy"]], "files": [(), ["lines.txt"]], "env": [(), ["HOME"]],
    "ignore": [(), ["a"]], "version": [None, 1], "most": [1000, 5], "positions": [None, [0, 1]],
    "options": [dsnb.Options()],
    "compression_type": [None, "", "GZIP", "ZLIB"], "limit_bytes": [None, 0, 1000], "chunk_bytes": [1, 1 << 20],
    "padded_shapes": [None, [None], (), [4]], "padding_values": [None, 0], "shape": [(), (None, 2)],
    "dtype": ["f4", str],
    "fingerprint_key": ["key"], "output_fingerprint": ["output"], "output_fingerprint_key": ["output"],
    "node_name": ["node"], "output": [1], "max_size": [0, 1, None], "work_dir": [None, "work"],
    "worker_addresses": [None, ["localhost:%port%"]], "worker_address": [None, "localhost:%port%", "127.0.0.1:80"],
    "spill_dir": [None, "."], "max_readers": [1, 256], "later": [dsnb.Options()],
    "Dataset.__init__ operation": [dsnb.Dataset.range(3).operation],
    "DataService.__init__ cluster": [None], "dashboard": [None], "card": [None], "writers": [None],
}  # fmt: skip
_ONLY_PLAUSIBLE = {"start_together", "seconds", "timeout", "every", "height", "cluster", "dashboard", "card", "writers",
          "lease_seconds", "workers",
          "consumer_timeout_ms", "client_timeout_ms", "worker_timeout_ms", "reconnect_ms", "isolation"}  # fmt: skip
"""Parameters that get no other values: they may be right too, and then make a call take long, or cost much."""

_ALWAYS_GIVEN = {"timeout"}
"""Parameters that are never left out: the default is to wait for longer than a call may take here."""

_CALLS_USER_FUNCTION = {"Dataset.apply", "Dataset.reduce", "DataService.wait_until"}
"""What calls the function that it is given: the error is the function's."""

_RECEIVERS: dict[str, Callable[[FuzzEnvironment], Any]] = {
    "DispatchServer": lambda _: dsnb.DispatchServer(start=False),
    "WorkerServer": lambda world: dsnb.WorkerServer(
        dsnb.WorkerConfig(world.cluster.address, token=world.cluster.dispatcher.token), start=False
    ),
    "Options": lambda _: dsnb.Options(),
    "TFRecordWriter": lambda _: dsnb.TFRecordWriter("written"),
    "TensorSpec": lambda _: dsnb.TensorSpec(),
    "LocalTrainingCache": lambda _: dsnb.cache.LocalTrainingCache("results"),
    "ModelStorage": lambda _: dsnb.cache.ModelStorage("models"),
    "Remembered": lambda _: dsnb.cache.remembered(pair),
    "Resource": lambda _: dsnb.cache.Resource(name="weights"),
    "ElementIterator": lambda _: iter(dsnb.Dataset.range(3)),
    "RunWriter": lambda world: world.cluster.service.record("run.db"),
    "Snapshot": lambda world: world.cluster.service.status(),
}


# ---- drawing calls


@dataclass
class Call:
    """One call: a function by its name, on an object for methods, with arguments."""

    name: str
    function: Callable[..., Any]
    args: list[Any]
    kwargs: dict[str, Any]
    parameters: Sequence[str]
    receiver: Any = None

    def stop_receiver(self) -> None:
        """End what the call was made on, unless it is the service of all calls."""
        for name in ("stop", "close"):
            if not isinstance(self.receiver, DataService) and hasattr(self.receiver, name):
                getattr(self.receiver, name)()

    def __str__(self) -> str:
        given = [*map(_shown, self.args), *(f"{name}={_shown(value)}" for name, value in self.kwargs.items())]
        return f"{self.name}({', '.join(given)})"


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - objects of the user's may do anything
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _MAX_REPR else f"{text[:_MAX_REPR]}..."


def calls(environment: FuzzEnvironment, seed: int, count: int) -> Iterator[Call]:
    """So many calls, the same ones for the same seed."""
    _random.seed(seed)
    functions = public_callables()
    names = sorted(functions)
    weights = [_WEIGHTS.get(name, 1.0) for name in names]
    for _ in range(count):
        name = _random.choices(names, weights)[0]
        yield _drawn(environment, name, functions[name])


_WEIGHTS = {
    "distribute": 3.0, "from_dataset_id": 3.0, "register_dataset": 2.0, "DispatcherConfig.__init__": 2.0,
    "WorkerConfig.__init__": 2.0, "CrossTrainerCache.__init__": 2.0,
    # Some cost much, or wait for as long as they were asked to.
    "start": 0.5, "DispatchServer.__init__": 0.5, "WorkerServer.__init__": 0.5, "connect": 0.5, "assert_resumable": 0.5,
    "DataService.record": 0.5, "LocalTrainingCache.__init__": 0.5, "DataService.remove": 0.3, "RunWriter.stop": 0.2,
    "DataService.stop": 0.2, "WorkerServer.start": 0.2, "DataService.report": 0.1, "DataService.dashboard": 0.1,
    "DataService.dashboard_url": 0.05, "DataService.explain": 0.05,
}  # fmt: skip


def _drawn(environment: FuzzEnvironment, name: str, function: Any) -> Call:
    parameters = dict(inspect.signature(function).parameters)
    kind, _, method = name.partition(".")
    args: list[Any] = []
    owner = None
    if method and next(iter(parameters), "") == "self":
        del parameters["self"]
        function = getattr(dsnb, kind, None) or getattr(dsnb.cache, kind) if method == "__init__" else None
        owner = None if function else environment.receiver(name)
        function = function or getattr(owner, method)
    kwargs: dict[str, Any] = {}
    positional = _random.random() < 0.5
    wrong = set(_random.sample([*parameters], min(len(parameters), _random.choices((0, 1, 2), (30, 55, 15))[0])))
    for parameter in parameters.values():
        value = _value(environment, name, parameter, odd=parameter.name in wrong)
        if value is parameter.empty:
            positional = False
        elif parameter.kind is parameter.VAR_POSITIONAL:
            args += [value] * _random.randrange(4)
        elif parameter.kind is parameter.VAR_KEYWORD:
            kwargs |= {"desc": value} if _random.random() < 0.3 else {"disable": True}
        elif parameter.kind is parameter.POSITIONAL_ONLY or (
            positional and parameter.kind is not parameter.KEYWORD_ONLY
        ):
            args.append(value)
        else:
            kwargs[parameter.name] = value
    if _random.random() < 0.03:
        kwargs[_random.choice(["nonsense", *(f"{known}s" for known in parameters)])] = 1
    if _random.random() < 0.02 and not any(one.kind is one.VAR_POSITIONAL for one in parameters.values()):
        args += [1] * (len(parameters) + 1 - len(args))
        kwargs = {}
    return Call(name, function, args, kwargs, [*parameters], owner)


def _value(environment: FuzzEnvironment, name: str, parameter: inspect.Parameter, *, odd: bool) -> Any:
    """A value for a parameter; `empty` to leave it out."""
    if odd and parameter.name not in _ONLY_PLAUSIBLE:
        return _random.choice(environment.any_values())
    left_out = _random.random() < (0.6 if parameter.default is not parameter.empty else 0.02)
    if left_out and parameter.name not in _ALWAYS_GIVEN:
        return parameter.empty
    return _random.choice(environment.plausible_values(name, parameter.name))


# ---- making them


def flaw_of(call: Call, environment: FuzzEnvironment) -> str:
    """What is wrong with what came of a call; empty if nothing is."""
    with _time_limit(), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            made = call.function(*call.args, **call.kwargs)
        except DsnbError as error:
            return "" if call.name in _CALLS_USER_FUNCTION else _flaw_of_refusal(call, error)
        except UserFunctionError:
            return ""
        except Exception as error:  # noqa: BLE001 - raw errors are what is looked for
            return (
                ""
                if _is_user_error(error) or call.name in _CALLS_USER_FUNCTION
                else f"raised {type(error).__name__}: {error}"
            )
        except HungError as hung:
            return f"took longer than {LIMIT_S:g} s, at\n{hung}"
        finally:
            call.stop_receiver()
        try:
            return _flaw_of_result(call, made, environment)
        except HungError as hung:
            return f"was accepted, and what it gave took longer than {LIMIT_S:g} s, at\n{hung}"


def _flaw_of_refusal(call: Call, error: DsnbError) -> str:
    method = call.name.rpartition(".")[2]
    given = {*call.parameters, *call.kwargs, method, *(("start", "stop", "step") if method == "range" else ())}
    words = set(re.findall(r"\w+", str(error)))
    named = any(name in words or set(name.split("_")) <= words for name in given)
    shown = any(
        isinstance(value, str) and value and value in str(error) for value in (*call.args, *call.kwargs.values())
    )
    state = not given or _is_about_state(call, error)
    if not (named or shown or state):
        return f"was refused without naming an argument: {error}"
    return "" if error.hint or state else f"was refused without advice: {error}"


def _is_about_state(call: Call, error: DsnbError) -> bool:
    """Whether a refusal is about the object that the method is called on."""
    return isinstance(error, dsnb.errors.FailedPreconditionError | dsnb.errors.UnavailableError) and "." in call.name


def _is_user_error(error: BaseException) -> bool:
    """Whether an error is one of a function of the user's, as its note says, or of the file that the user named."""
    notes = getattr(error, "__notes__", ())
    return isinstance(error, UserFunctionError) or any(note.startswith("in ") for note in notes)


def _flaw_of_result(call: Call, made: Any, environment: FuzzEnvironment) -> str:
    """What is wrong with a call's result when it is used."""
    if isinstance(made, dsnb.Dataset):
        flaw = _flaw_of_reading(made)
        return flaw or (_flaw_of_distributing(made, environment) if _random.random() < _DISTRIBUTED else "")
    if isinstance(made, ElementIterator):
        return _flaw_of_elements(made)
    if call.name == "distribute":
        return _flaw_of_reading_by(made)
    if call.name in ("DispatcherConfig.__init__", "WorkerConfig.__init__"):
        return _flaw_of_config(made, environment)
    if call.name == "CrossTrainerCache.__init__":
        endless = dsnb.Dataset.range(5).repeat()
        options = {"job_name": f"cached {_random.random()}", "cross_trainer_cache": made}
        return _flaw_of_reading_by(dsnb.distribute("parallel_epochs", environment.cluster.service, **options), endless)
    if hasattr(made, "stop") and call.name not in ("DataService.lent", "connect", "DataService.__init__"):
        made.stop()
    elif hasattr(made, "__enter__") and call.name.startswith("ModelStorage"):
        with contextlib.suppress(DsnbError), made:
            pass
    elif hasattr(made, "close") and call.name != "progress":
        made.close()
    return ""


def _flaw_of_reading_by(distributed: Callable[[dsnb.Dataset], dsnb.Dataset], *datasets: dsnb.Dataset) -> str:
    for dataset in datasets or (dsnb.Dataset.range(5), dsnb.Dataset.range(5).repeat()):
        try:
            read = distributed(dataset)
        except DsnbError as error:
            if not error.hint:
                return f"was accepted, and refused when it was applied, without advice: {error}"
            continue
        if flaw := _flaw_of_reading(read):
            return flaw
    return ""


def _flaw_of_distributing(dataset: dsnb.Dataset, environment: FuzzEnvironment) -> str:
    mode = _random.choice(["parallel_epochs", "distributed_epoch"])
    return _flaw_of_reading_by(dsnb.distribute(mode, environment.cluster.service), dataset)


def _flaw_of_reading(dataset: dsnb.Dataset) -> str:
    repr(dataset)
    with contextlib.suppress(DsnbError, TypeError):
        len(dataset)
    try:
        elements = iter(dataset)
    except DsnbError:
        return ""
    return _flaw_of_elements(elements)


def _flaw_of_elements(elements: ElementIterator) -> str:
    with elements:
        for _ in range(_READ):
            try:
                element = next(elements)
                if isinstance(element, dsnb.Dataset):
                    _flaw_of_reading(element)
            except StopIteration:
                return ""
            except DsnbError:  # in an element's place, with its page
                continue
            except (OSError, UnicodeDecodeError) as error:
                if getattr(error, "filename", None) is None and not isinstance(error, UnicodeDecodeError):
                    return f"was accepted, and reading raised {type(error).__name__}: {error}"
            except Exception as error:  # noqa: BLE001 - raw errors are what is looked for
                if not _is_user_error(error):
                    return f"was accepted, and reading raised {type(error).__name__}: {error}"
    return ""


def _flaw_of_config(config: Any, environment: FuzzEnvironment) -> str:
    """A server is started with an accepted configuration, on a free port and, for a worker, at the service."""
    try:
        if isinstance(config, dsnb.DispatcherConfig):
            server: Any = dsnb.DispatchServer(replace(config, port=0))
        else:
            token = environment.cluster.dispatcher.token
            known = replace(
                config, dispatcher_address=environment.cluster.address, token=token, port=0, worker_address=None
            )
            server = dsnb.WorkerServer(known)
        server.stop()
    except DsnbError as error:
        return "" if error.hint else f"was accepted, and starting said without advice: {error}"
    except Exception as error:  # noqa: BLE001 - raw errors are what is looked for
        return f"was accepted, and starting raised {type(error).__name__}: {error}"
    return ""


@contextlib.contextmanager
def _time_limit(seconds: float = LIMIT_S) -> Iterator[None]:
    """Interrupt what hangs."""

    def on_alarm(_signal: int, frame: Any) -> None:
        raise HungError("".join(traceback.format_stack(frame)[-4:]))

    before = signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


# ---- the command line

_WORDS: list[str] = [
    "", "a", "-1", "0", "1", "nan", "inf", "70000", "1e3", "2**31", "x:y:z", "localhost", "localhost:1:2", ":1", "--",
    "-", "lines.txt", "nowhere/x", ".", "x" * 300, "訓練", "a b", "500MB", "-5MB", "1e400GB", "'", "a\nb", "grpc://a://b",
]  # fmt: skip
_WRONG: dict[str, list[str]] = {
    "demo": ["--workers=0", "--workers=100000", "--seconds=-1", "--seconds=nan", "--seconds=inf", "--seconds=0",
             "--isolation=fork"],
    "dispatcher": ["--port=-1", "--port=70000", "--port=9-5", "--port=5100-", "--host=nowhere", "--host=",
                   "--name=a/b", "--name=",
                   "--consumer-timeout-ms=0", "--consumer-timeout-ms=nan", "--worker-address=", "--work-dir=",
                   "--record=", "--record=no-such-folder/run.db", "--record=."],
    "worker": ["--dispatcher=x:y:z", "--dispatcher=nobody", "--dispatcher=grpc://a://b:1", "--port=70000",
               "--host=nowhere", "--join=nowhere.join", "--join=lines.txt", "--worker-address=x:y:z",
               "--worker-address=", "--cache-bytes=-1", "--cache-bytes=0",
               "--cache-bytes=lots",
               "--cache-bytes=1e400GB", "--max-readers=0", "--shared-memory-bytes=-5", "--shared-memory-bytes=1e30"],
    "dashboard": ["--port=70000", "--port=-1", "--replay=nowhere.db", "--replay=.", "--replay=lines.txt", "nobody"],
    "top": ["--interval=nan", "--interval=-1", "--interval=often", "nobody", "a:b", "grpc://a://b:1"],
}  # fmt: skip
"""Mistakes in the options of commands that go on until they are stopped; with one of them none begins."""


def declared_options() -> dict[str, list[argparse.Action]]:
    """The options and arguments of each command."""
    found: dict[str, list[argparse.Action]] = {}
    add = argparse.ArgumentParser.add_argument

    def add_and_note(parser: argparse.ArgumentParser, *args: Any, **options: Any) -> argparse.Action:
        action = add(parser, *args, **options)
        found.setdefault(parser.prog.removeprefix("dsnb").strip(), []).append(action)
        return action

    with mock.patch.object(argparse.ArgumentParser, "add_argument", add_and_note):
        make_parser()
    del found[""]
    return found


def command_lines(environment: FuzzEnvironment, seed: int, count: int) -> Iterator[list[str]]:
    """So many command lines with mistakes in them, drawn from the declared options."""
    _random.seed(seed)
    commands = declared_options()
    for _ in range(count):
        name = _random.choice(sorted(commands))
        words = name.split()
        if name in _WRONG:
            address = environment.cluster.address
            words.append(_random.choice(_WRONG[name]))
            if name == "worker" and not words[1].startswith("--dispatcher"):
                words += ["--dispatcher", address]
            elif name in {"dashboard", "top"} and words[1].startswith("--"):
                words.append(address)
            yield words
            continue
        for action in commands[name]:
            if _random.random() < (0.3 if action.option_strings else 0.9):
                words += _random.choices(action.option_strings, k=1) if action.option_strings else []
                words += [] if action.nargs == 0 else [_random.choice([*map(str, action.choices or ()), *_WORDS])]
        yield words


def flaw_of_command(words: list[str]) -> str:
    """What is wrong with what a command line did; empty if nothing is."""
    stderr, stdout = io.StringIO(), io.StringIO()
    try:
        with _time_limit(), contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
            code = main(words)
    except SystemExit as left:
        code = int(left.code or 0)
    except HungError:
        return f"took longer than {LIMIT_S:g} s"
    except Exception as error:  # noqa: BLE001 - raw errors are what is looked for
        return f"raised {type(error).__name__}: {error}"
    if code not in (0, 1, 2):
        return f"ended with {code}"
    if words[0] in _WRONG and words[1] not in {"drain", "remove"}:
        option, _, value = words[1].lstrip("-").partition("=")
        if not code:
            return "began all the same"
        if option.partition("-")[0] not in stderr.getvalue() and (value or option) not in stderr.getvalue():
            return f"was refused without naming the option: {stderr.getvalue()!r}"
    if code and ("Traceback" in stderr.getvalue() or not stderr.getvalue()):
        return f"ended with {code} and said {stderr.getvalue()!r}"
    return ""
