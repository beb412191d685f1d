"""`connect`: attach to a service that runs, in this process or another."""

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
    """Attach to a service that runs, in this process or another; it is never stopped by this object.

    Args:
        service: Its name or its target; None for the only one of this user on this host.
        token: Its token; None to find it (this user's connection files, then `DSNB_TOKEN`).

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
    assert not isinstance(service, DataService)  # by its rule
    found = discovery.resolve(service)
    known = token if token is not None else found.token or None
    try:
        snapshot = fetch_snapshot(found.target, known)
    except PermissionDeniedError as error:
        raise PermissionDeniedError(error.what, did="nothing was opened", hint=error.hint) from None
    return DataService(snapshot.service or found.name, found.target, known)
