"""`connect`: attach to a service that runs, in this process or another."""

from __future__ import annotations

from dsnb.errors import NotFoundError, PermissionDeniedError
from dsnb.monitor.watch import fetch_snapshot
from dsnb.notebook.service import DataService
from dsnb.wire import discovery
from dsnb.wire.channel import split_target


def connect(service: str | DataService | None = None, token: str | None = None) -> DataService:
    """Attach to a service that runs, in this process or another; it is never stopped by this object.

    Args:
        service: Its name or its target; None for the only one of this user on this host.
        token: What to show; None to find it (this user's connection files, then `DSNB_TOKEN`).

    Raises:
        NotFoundError: none runs, none fits, or several run and none was named.
        UnavailableError: nobody answers at the target.
        PermissionDeniedError: the token is missing or wrong.

    Example:
        >>> import dsnb
        >>> with dsnb.start(workers=1, name="shared") as svc:
        ...     dsnb.connect("shared").target == svc.target
        True
    """
    if isinstance(service, DataService):
        service = service.target
    name, target, found = _locate(service)
    shown = token if token is not None else found
    try:
        snapshot = fetch_snapshot(target, shown)
    except PermissionDeniedError as error:
        raise PermissionDeniedError(error.what, did="nothing was opened", hint=error.hint) from None
    return DataService(snapshot.service or name, target, shown)


def _locate(service: str | None) -> tuple[str, str, str]:
    try:
        connection = discovery.find(service)
        return connection.name, connection.target, connection.token
    except NotFoundError:
        if service is None or ":" not in service:
            raise
    address = split_target(service)
    return address, f"grpc://{address}", discovery.token_for(address)
