"""`connect`: attach to a running service, of this process or another."""

from __future__ import annotations

from typing import Any

from dsnb.arguments import checked, optional, text
from dsnb.errors import PermissionDeniedError
from dsnb.monitor.watch import fetch_snapshot
from dsnb.notebook.service import DataService
from dsnb.wire import discovery
from dsnb.wire.addresses import token as token_rule


def _service(name: str, value: Any) -> str:
    return value.target if isinstance(value, DataService) else text(name, value)


@checked(service=optional(_service), token=optional(token_rule))
def connect(service: str | DataService | None = None, token: str | None = None) -> DataService:
    """Attach to a running service, of this process or another. The returned object never stops it.

    Args:
        service: The service's name or address, or the path of its join file. None for the service of the join file
            that the environment variable `DSNB_JOIN_FILE` names, or else for the only one of this user on this host.
        token: The service's token; None to look it up in this user's connection files, then in `DSNB_TOKEN`.

    Raises:
        NotFoundError: no service runs, none has that name, or several run and none was named.
        UnavailableError: nothing answers at the address.
        PermissionDeniedError: the token is missing or wrong.

    Example:
        >>> import dsnb
        >>> with dsnb.start(workers=1, name="shared") as svc:
        ...     dsnb.connect("shared").target == svc.target
        True
    """
    assert not isinstance(service, DataService)  # the `_service` check has replaced it by its target
    found = discovery.resolve(service)
    known = token if token is not None else found.token or None
    try:
        snapshot = fetch_snapshot(found.target, known)
    except PermissionDeniedError as error:
        raise PermissionDeniedError(error.what, did="nothing was opened", hint=error.hint) from None
    return DataService(snapshot.service or found.name, found.target, known)
