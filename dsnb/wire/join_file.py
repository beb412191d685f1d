"""Join files: all that a machine needs to join a service, in one file that only its owner can read.

A join file is JSON: the service's name, its address, its token and, if the service uses TLS, its certificate with the
key. Whoever has it may run code on the service's workers, so it is written with mode 0600 and copied over a connection
that is safe, such as ssh.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field
from typing import Any, Final

from dsnb.errors import DsnbError, FailedPreconditionError, NotFoundError
from dsnb.storage.files import write_private_file
from dsnb.wire.addresses import target_address
from dsnb.wire.certificates import check_certificate
from dsnb.wire.security import check_token

SUFFIX: Final = ".join"
STANDARD_INPUT: Final = "-"
JOIN_FILE_VARIABLE: Final = "DSNB_JOIN_FILE"

_FORMAT: Final = 1
_MAX_BYTES: Final = 128 << 10


@dataclass(frozen=True, slots=True, kw_only=True)  # no Struct: that shows the token to the library rich
class JoinFile:
    """The content of a join file.

    Attributes:
        name: The service's name.
        address: The dispatcher's address, as other machines reach it: "host:port".
        token: The service's token.
        certificate: Its certificate with the key, in PEM format; empty if its connections are not encrypted.
    """

    name: str
    address: str
    token: str = field(repr=False)
    certificate: str = field(default="", repr=False)

    def to_text(self) -> str:
        """The file's content, on one line."""
        fields = {"name": self.name, "address": self.address, "token": self.token, "certificate": self.certificate}
        return json.dumps({"dsnb_join_file": _FORMAT, **fields})


def parse_join_file(text: str, where: str = "the join file") -> JoinFile:
    """The join file with this content.

    Args:
        text: What `JoinFile.to_text` returned.
        where: What to call it in the error.

    Raises:
        FailedPreconditionError: the text is something else.
    """
    try:
        fields: Any = json.loads(text)
        if not isinstance(fields, dict) or fields.get("dsnb_join_file") != _FORMAT:
            raise ValueError
        found = JoinFile(**{name: str(fields[name]) for name in ("name", "address", "token", "certificate")})
        target_address(found.address)
        check_token(found.token, "the token")
        if found.certificate:
            check_certificate("certificate", found.certificate)
    except (ValueError, KeyError, RecursionError, DsnbError):  # the cause may quote the token: it is not chained
        raise FailedPreconditionError(
            f"{where} is no join file of this version of dsnb",
            did="nothing was started and nothing was sent",
            hint="where the service was started, svc.join_command() writes one",
        ) from None
    return found


def read_join_file(path: str | os.PathLike[str]) -> JoinFile:
    """Read a join file; "-" stands for standard input.

    Raises:
        NotFoundError: the file cannot be read.
        FailedPreconditionError: it is no join file.
    """
    name = os.fspath(path)
    if name == STANDARD_INPUT:
        return parse_join_file(sys.stdin.read(_MAX_BYTES), "the text on standard input")
    try:
        with open(name, encoding="utf-8", errors="replace") as file:
            text = file.read(_MAX_BYTES)
    except OSError as error:
        raise NotFoundError(
            f"the join file {name!r} cannot be read ({error.strerror})",
            did="nothing was started and nothing was sent",
            hint="copy it here from the machine on which svc.join_command() wrote it",
        ) from error
    return parse_join_file(text, f"the file {name!r}")


def write_join_file(path: str | os.PathLike[str], join_file: JoinFile) -> None:
    """Write a join file with mode 0600.

    Raises:
        NotFoundError: the file cannot be written.
    """
    try:
        write_private_file(os.fspath(path), join_file.to_text().encode() + b"\n")
    except OSError as error:
        raise NotFoundError(
            f"the join file {os.fspath(path)!r} cannot be written ({error.strerror})", hint="name another path"
        ) from error


def is_join_file(service: str) -> bool:
    """Whether text that selects a service is the path of a join file, and not a name or an address."""
    return os.sep in service.partition("://")[2 if "://" in service else 0] or service.endswith(SUFFIX)
