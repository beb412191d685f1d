"""`Ray`: starts each worker as an actor of the Ray cluster that this process is connected to.

Theory of operation. Each worker has a placement group of its own, because that is the only way to learn whether Ray
has found resources for it: an actor that cannot be placed waits silently. One thread for each worker waits for the end
of the actor, and so gets Ray's own words for it. Actors are not detached, so they end with this process. Ray does not
restart them; the pool replaces them.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from dsnb import errors
from dsnb.arguments import checked, number, optional, text
from dsnb.errors import (
    DeadlineExceededError,
    DsnbError,
    FailedPreconditionError,
    InvalidArgumentError,
    UnavailableError,
)
from dsnb.launchers.engine import check_reachable, connect_engine, engine_text, resource_bytes, string_table
from dsnb.launchers.launcher import LaunchedWorker, Launcher, OnExit
from dsnb.monitor.formatting import plural
from dsnb.worker.config import WorkerConfig

_PLACEMENT_S = 5.0
"""How long `start` waits for a worker for which Ray reports no free resources, before it goes on without it."""
_PLACED = "placed"
_NO_ROOM = ("NO_RESOURCES", "INFEASIBLE")
"""Ray's words for a placement group that it tried to place, and could not. It tries again."""
_IDLE_POLL_S = 2.0
_CONCURRENCY = 8
"""How many methods of an actor run at the same time: `serve` takes one for as long as the worker lives."""


def _resources(name: str, value: Any) -> Any:
    for resource, argument in (("CPU", "num_cpus"), ("memory", "memory")):
        if isinstance(value, Mapping) and resource in value:
            raise InvalidArgumentError(f"`{name}` has {resource!r}", hint=f"pass it as {argument}=")
    return value


@checked(
    num_cpus=number("pass a number of CPUs, above 0", above=0.0, most=100_000.0),
    memory=optional(resource_bytes),
    resources=optional(_resources),
    label_selector=optional(string_table),
)
@dataclass(frozen=True)
class Ray(Launcher):
    """Starts each worker as an actor of the Ray cluster that this process is connected to (`ray.init`).

    Workers that Ray cannot place yet are reported with numbers; the service goes on without them, and they join when
    Ray finds resources for them.

    Args:
        num_cpus: CPUs that Ray reserves for each worker.
        memory: Bytes that Ray reserves for each worker, also as in "4GiB"; None for no reservation.
        resources: Further resources of Ray for each worker, as in `{"fast_disk": 1}`.
        label_selector: Labels of the nodes that may run workers, as in `{"pool": "cpu"}`.

    Raises:
        InvalidArgumentError: a value is invalid.

    Example:
        >>> Ray(num_cpus=2, memory="4GiB").memory
        4294967296
    """

    name: ClassVar[str] = "Ray"
    num_cpus: float = 1.0
    memory: int | str | None = None
    resources: Mapping[str, float] | None = field(default=None, hash=False)
    label_selector: Mapping[str, str] | None = field(default=None, hash=False)

    @checked(host=text)
    def check(self, host: str) -> None:
        """Find out whether this process is connected to a Ray cluster whose nodes can reach it.

        Args:
            host: The host on which the service is going to listen.

        Raises:
            FailedPreconditionError: Ray is not installed or not connected, or its nodes cannot reach this process.
        """
        ray = connected_ray()
        hosts = [node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]]
        check_reachable("Ray", hosts, host)

    @checked()
    def capacity(self) -> int:
        """How many more workers Ray could place now."""
        ray = connected_ray()
        free = ray.available_resources()
        return min(int(free.get(name, 0.0) / needed) for name, needed in self.reserved().items() if needed)

    def launch(self, config: WorkerConfig, on_exit: OnExit) -> LaunchedWorker:
        """Start a worker; used by `dsnb.start` and `svc.scale`."""
        return RayWorker(connected_ray(), self, config, on_exit)

    def unplaced_text(self, waiting: Sequence[LaunchedWorker], count: int) -> str:
        """Say with numbers why Ray could not place some of `count` workers, or that it has not done so yet."""
        ray = connected_ray()
        total, free = ray.cluster_resources(), ray.available_resources()
        waits = f"{len(waiting)} of {plural(count, 'worker')}"
        goes_on = "the service goes on without them, and they join when"
        room = all(free.get(name, 0.0) >= needed * len(waiting) for name, needed in self.reserved().items())
        if room and not self.label_selector:
            return f"Ray has not placed {waits} yet; {goes_on} it has"
        have = ", ".join(
            f"{free.get(name, 0.0):g} of {_amount(name, total.get(name, 0.0))}" for name in self.reserved()
        )
        each = ", ".join(_amount(name, needed) for name, needed in self.reserved().items())
        return (
            f"{waits} could not be placed: each needs {each}{self._labels_text()}, and the Ray cluster has {have} "
            f"free; {goes_on} Ray finds room for them"
        )

    def _labels_text(self) -> str:
        labels = ", ".join(f"{name}={value}" for name, value in (self.label_selector or {}).items())
        return f" on a node with the label {labels}" if labels else ""

    def reserved(self) -> dict[str, float]:
        """What Ray reserves for each worker, by the name of the resource."""
        memory = {"memory": float(self.memory)} if self.memory else {}
        return {"CPU": self.num_cpus, **memory, **(self.resources or {})}


class RayWorker:
    """One worker in an actor, as the process that owns it sees it. Thread-safe."""

    stderr: tuple[str, ...] = ()  # Ray prints what its workers write

    def __init__(self, ray: Any, launcher: Ray, config: WorkerConfig, on_exit: OnExit) -> None:
        self.uid = self.name = ""
        self._ray = ray
        self._config = config
        self._on_exit = on_exit
        self._refusal: DsnbError | None = None
        self._exit_reason = ""
        self._stopping = self._draining = False
        self._answered = threading.Event()
        self._ended = threading.Event()
        self._began = time.monotonic()
        needed = launcher.reserved()
        selector = dict(launcher.label_selector or {})
        self._group = ray.util.placement_group([needed], bundle_label_selector=[selector] if selector else None)
        try:
            self._actor = self._new_actor(launcher)
        except BaseException:
            ray.util.remove_placement_group(self._group)
            raise
        self._thread = threading.Thread(target=self._supervise, name="dsnb-ray-worker", daemon=True)
        self._thread.start()

    def _new_actor(self, launcher: Ray) -> Any:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        from dsnb.launchers.ray_actor import WorkerActor

        options: dict[str, Any] = {
            "num_cpus": launcher.num_cpus,
            "max_restarts": 0,
            "max_task_retries": 0,
            "max_concurrency": _CONCURRENCY,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(self._group, 0),
        }
        if launcher.memory:
            options["memory"] = launcher.memory
        others = dict(launcher.resources or {})
        if "GPU" in others:
            options["num_gpus"] = others.pop("GPU")
        if others:
            options["resources"] = others
        return self._ray.remote(**options)(WorkerActor).remote()

    @property
    def placed(self) -> bool:
        return self._answered.is_set() or self._placement() == _PLACED

    def _placement(self) -> str:
        """`_PLACED`, or how far Ray is with the placement.

        `PlacementGroup.wait(0.0)` does not serve: it says no if Ray takes longer than that to answer.
        """
        try:
            group = self._ray.util.placement_group_table(self._group)
        except Exception:  # noqa: BLE001 - Ray was shut down; `_supervise` reports that
            return _PLACED
        return _PLACED if group.get("state") == "CREATED" else str(group.get("stats", {}).get("scheduling_state", ""))

    @property
    def idle(self) -> bool:
        if self._ended.is_set() or not self.uid:
            return True  # a worker that was not placed holds nothing
        try:
            return bool(self._ray.get(self._actor.idle.remote(), timeout=_IDLE_POLL_S))
        except Exception:  # noqa: BLE001 - it ended, or is too busy to answer; asked again soon
            return self._ended.is_set()

    def wait_ready(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not self._answered.wait(0.05) and (placement := self._placement()) != _PLACED:
            now = time.monotonic()
            if now > deadline or (placement in _NO_ROOM and now - self._began > _PLACEMENT_S):
                return  # `placed` is false then
        if not self._answered.wait(max(0.0, deadline - time.monotonic())):
            self.stop(0.0)
            raise DeadlineExceededError(
                f"a worker that Ray placed was not ready within {timeout:g} seconds",
                did="it was ended",
                hint="look at the logs of Ray's workers (/tmp/ray/session_latest/logs)",
            )
        if self._refusal is not None:
            self.stop(0.0)
            raise self._refusal

    def drain(self) -> None:
        self._draining = True
        self._call("drain")

    def ask_to_stop(self) -> None:
        self._stopping = True
        if self.uid:
            self._call("stop")

    def stop(self, timeout: float) -> None:
        self.ask_to_stop()
        if self.uid:
            self._ended.wait(timeout)
        self._remove()
        if self._thread is not threading.current_thread():
            self._thread.join(_IDLE_POLL_S)

    def exit_reason(self) -> str:
        return self._exit_reason if self._refusal is None else self._refusal.what

    def __repr__(self) -> str:
        state = "ended" if self._ended.is_set() else "running" if self._answered.is_set() else "starting"
        return f"RayWorker({self.name or 'unnamed'}, {state})"

    def _call(self, method: str) -> None:
        if self._ray.is_initialized() and not self._ended.is_set():  # a call would start Ray again otherwise
            getattr(self._actor, method).remote()

    def _remove(self) -> None:
        """End the actor's process and give its resources back. A second call does nothing."""
        if not self._ray.is_initialized():
            return
        try:
            self._ray.kill(self._actor)
            self._ray.util.remove_placement_group(self._group)
        except Exception:  # noqa: BLE001 - Ray is shutting down, which ends the actor too
            return

    # ---- the supervising thread

    def _supervise(self) -> None:
        try:
            self._start()
            reason = self._ray.get(self._actor.serve.remote()) if self._refusal is None else ""
            self._exit_reason = f"it ended: {reason}" if reason else "it ended"
        except Exception as error:  # noqa: BLE001 - Ray raises many classes for the end of an actor
            self._exit_reason = f"Ray says: {engine_text(error)}"
            if not self.uid:
                self._refusal = _start_error(error)
        finally:
            self._answered.set()
            self._ended.set()
        self._remove()
        if not self._stopping and not self._draining:
            self._on_exit(self)

    def _start(self) -> None:
        answer = self._ray.get(self._actor.start.remote(asdict(self._config)))
        if "failed" in answer:
            kind = getattr(errors, answer["failed"], DsnbError)
            self._refusal = kind(answer["what"], did=answer["did"], hint=answer["hint"])
        else:
            self.name = answer["name"]
            self.uid = answer["uid"]
        self._answered.set()


def connected_ray() -> Any:
    """The module `ray`, connected to a cluster whose driver is this process.

    Raises:
        FailedPreconditionError: Ray is not installed or not connected, or this is a Ray Client.
    """
    ray = connect_engine("ray", "ray")
    # `import ray` does not import its client; a driver that uses it has.
    client = importlib.import_module("ray.util.client")
    if client.ray.is_connected():
        raise FailedPreconditionError(
            "this process is connected to Ray through a Ray Client (ray://), so the workers cannot reach it",
            did="nothing was started",
            hint="run the notebook on a node of the cluster, and connect with ray.init(address='auto')",
        )
    if not ray.is_initialized():
        raise FailedPreconditionError(
            "this process is not connected to a Ray cluster",
            did="nothing was started",
            hint="ray.init() starts one on this machine; ray.init(address='auto') connects to a running one",
        )
    return ray


def _start_error(error: Exception) -> DsnbError:
    text = engine_text(error)
    missing = "No module named 'dsnb'" in text
    return UnavailableError(
        f"Ray could not start a worker: {text}",
        did="the service was left as it was",
        hint='install dsnb on the nodes, or let Ray do it: ray.init(runtime_env={"pip": ["dsnb"]})'
        if missing
        else "look at the logs of Ray's workers (/tmp/ray/session_latest/logs)",
    )


def _amount(resource: str, number: float) -> str:
    unit = {"CPU": "CPU" if number == 1.0 else "CPUs", "memory": "bytes of memory"}.get(resource, resource)
    return f"{number:g} {unit}"
