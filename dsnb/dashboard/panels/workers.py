"""The workers panel: how busy they are, what they produce and send, how full their windows and their hosts are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dsnb.dashboard.markup import Html, join, tag
from dsnb.dashboard.panels.buttons import button, buttons
from dsnb.dashboard.panels.tables import empty_message, heading, name_markup, table
from dsnb.dashboard.view import View
from dsnb.monitor.formatting import format_bytes, natural_sort_key, plural
from dsnb.monitor.hosts import busy_text, memory_text
from dsnb.monitor.snapshot import HostStatus, Snapshot, WorkerStatus
from dsnb.monitor.tables import worker_table
from dsnb.wire.messages import GpuStatus, HostUse

COLUMNS = {
    "worker": "",
    "state": "",
    "busy": "",
    "cpus": "minor rare",
    "rss_bytes": "minor rare",
    "produced": "minor",
    "rate": "desk",
    "sent_rate": "minor rare",
    "cache_bytes": "desk",
    "tasks": "minor rare",
    "errors": "minor",
    "heard": "desk",
}
"""The columns by field, with their CSS classes."""

_MOST_WORKERS = 32
"""The greatest number of workers after a press of "autoscale"; as `DataService.autoscale` has it."""
_TRANSFERS = {"local": "reference", "shared_memory": "shared memory", "tcp": "TCP", "grpc": "gRPC"}
_OVER_NETWORK = {"tcp", "grpc"}
_ENCRYPTED = {"tls": ", encrypted", "plain": ", not encrypted", "loopback": ""}


def workers(view: View) -> Html:
    title = heading("Workers", "the processes and threads that run pipelines", _scale(view))
    found = view.snapshot.workers if view.snapshot else ()
    if not found:
        return join(
            title, empty_message("No workers: svc.scale(2) starts two." if view.snapshot else "No service yet.")
        )
    hosts = _by_host(sorted(found, key=lambda worker: natural_sort_key(worker.name)))
    if len(hosts) == 1:
        ((key, here),) = hosts.items()
        return join(title, _table(view, here), _host(view, key, here))
    return join(title, *(join(_host(view, key, here, _place(here)), _table(view, here)) for key, here in hosts.items()))


def _table(view: View, here: Sequence[WorkerStatus]) -> Html:
    running = {worker.name for worker in here if worker.state == "running"}
    return table(
        "worker",
        worker_table(here, COLUMNS, view.known_rates),
        COLUMNS,
        actions=lambda name: _buttons(view, name, running=name in running),
    )


def _by_host(found: Iterable[WorkerStatus]) -> dict[str, list[WorkerStatus]]:
    hosts: dict[str, list[WorkerStatus]] = {}
    for worker in found:
        hosts.setdefault(worker.host_id or worker.address.rpartition(":")[0], []).append(worker)
    return hosts


def _host(view: View, key: str, here: Sequence[WorkerStatus], place: Html | None = None) -> Html | None:
    """What is used of one host, and how much of that its workers use; None if nothing is known."""
    hosts = view.snapshot.hosts if view.snapshot else ()
    use = next((host for host in hosts if host.host_id == key), HostStatus())
    gauges = [*_cpu_gauge(view, here), *_memory_gauge(here, use), *_gpu_gauges(use.gpus), *_link_gauge(view, here)]
    if not gauges and place is None:
        return None
    name = here[0].host or here[0].address.rpartition(":")[0]
    return tag("div", name_markup(name), place, *gauges, class_="host", data_host=name, data_key=f"host {key}")


def _place(here: Sequence[WorkerStatus]) -> Html:
    """The addresses of a host's workers, without their ports, and how many workers there are."""
    addresses = sorted({worker.address.rpartition(":")[0] for worker in here})
    return tag("span", ", ".join(addresses), ", ", plural(len(here), "worker"), class_="unit")


def _link_gauge(view: View, here: Sequence[WorkerStatus]) -> Iterator[Html]:
    """How much the workers of a host send to readers, by which transfers, and whether that is encrypted."""
    names, jobs = {worker.name for worker in here}, view.snapshot.jobs if view.snapshot else ()
    transfers = {link.transfer for job in jobs if job.clients for link in job.links if link.worker in names}
    if view.measured and transfers & _TRANSFERS.keys():
        sent = sum(view.rates.worker(worker.uid).sent_bytes for worker in here)
        words = [_TRANSFERS[transfer] for transfer in _TRANSFERS if transfer in transfers]
        if transfers & _OVER_NETWORK and view.snapshot is not None:
            words[-1] += _ENCRYPTED.get(view.snapshot.network, "")
        yield _gauge(tag("span", f"sends {format_bytes(sent)}/s by {' and '.join(words)}", data_field="host_links"))


def _cpu_gauge(view: View, here: Sequence[WorkerStatus]) -> Iterator[Html]:
    if not view.measured:
        return
    rates = {worker.pid: view.rates.worker(worker.uid) for worker in here}  # thread workers share a process
    used, cpus = sum(one.used_cpus for one in rates.values()), max(worker.cpus for worker in here)
    idle = [one.idle_cpus for one in rates.values() if one.idle_cpus is not None]
    own = f"workers use {used:.1f}"
    if idle and cpus:
        busy = max(0.0, cpus - min(idle))
        yield _gauge("CPUs", _meter("host_cpus", f"{busy:.1f} of {cpus}", busy, cpus), own)
    else:
        yield _gauge(f"{own} CPUs")


def _memory_gauge(here: Sequence[WorkerStatus], use: HostStatus) -> Iterator[Html]:
    own = sum({worker.pid: worker.rss_bytes for worker in here}.values())
    told = f"workers use {format_bytes(own)}" if own else None
    if use.memory_total_bytes:
        yield _gauge("memory", _memory_meter("host_memory", use), told)
    elif told:
        yield _gauge(f"{told} of memory")


def _gpu_gauges(gpus: Sequence[GpuStatus]) -> Iterator[Html]:
    for number, gpu in enumerate(gpus):
        yield _gauge(
            tag("span", f"GPU {number}", title=gpu.name),
            _meter(f"gpu{number}_busy", busy_text(gpu), max(0, gpu.busy_percent), 100),
            _memory_meter(f"gpu{number}_memory", gpu),
        )


def _gauge(*parts: object) -> Html:
    return tag("span", *parts, class_="gauge")


def _memory_meter(field: str, of: HostUse | GpuStatus) -> Html:
    return _meter(field, memory_text(of), of.memory_used_bytes, of.memory_total_bytes)


def _meter(field: str, text: str, used: float, total: float) -> Html:
    """A share as a bar, with its text on it."""
    bar = tag("i", style=f"width:{min(1.0, used / total) if total else 0.0:.0%}")
    return tag("span", bar, tag("em", text), class_="meter", data_field=field, data_value=round(used, 2))


def _scale(view: View) -> Html | None:
    """Buttons for one worker more or less, and for autoscaling; None unless the service starts its workers itself."""
    snapshot = view.snapshot
    if snapshot is None or not snapshot.scalable:
        return None
    running = sum(worker.state == "running" for worker in snapshot.workers)
    less = button(view, "scale", "− worker", workers=str(running - 1)) if running else None
    more = button(view, "scale", "+ worker", workers=str(running + 1))
    limits = snapshot.autoscale
    if limits is None:
        most = str(max(_MOST_WORKERS, running))
        return join(_launcher(snapshot), buttons(less, more, button(view, "autoscale", "autoscale", maximum=most)))
    text = f"autoscaling {limits.minimum} to {limits.maximum}, {limits.wanted} wanted"
    shown = tag("span", text, class_="hint", title=limits.reason or None, data_field="autoscale")
    return join(_launcher(snapshot), shown, buttons(less, more, button(view, "fix", "stop autoscaling")))


def _launcher(snapshot: Snapshot) -> Html | None:
    return tag("span", f"started by {snapshot.launcher}", class_="hint") if snapshot.launcher else None


def _buttons(view: View, name: str, *, running: bool) -> Html:
    drain = button(view, "drain", "drain", worker=name) if running else None
    return buttons(drain, button(view, "remove", "remove", worker=name))
