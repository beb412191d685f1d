"""The command by which other machines join a service, and the join file that it names."""

from __future__ import annotations

from dsnb.errors import FailedPreconditionError
from dsnb.wire import discovery
from dsnb.wire.addresses import host_of, is_loopback, target_address
from dsnb.wire.join_file import SUFFIX, JoinFile, write_join_file


def join_file_of(name: str, target: str, token: str | None) -> JoinFile:
    """The join file of a service, with the token and certificate known here.

    Raises:
        FailedPreconditionError: the service listens on loopback.
    """
    address = target_address(target)
    if is_loopback(host_of(address)):
        raise FailedPreconditionError(
            f"the service {name!r} listens on {address}, where no other machine can reach it",
            did="no join file was written",
            hint='start it with dsnb.start(host="auto")',
        )
    known = token or discovery.token_for(address)
    return JoinFile(name=name, address=address, token=known, certificate=discovery.certificate_for(known))


def join_command(name: str, target: str, token: str | None, *, inline: bool) -> str:
    """The shell command that starts a worker elsewhere; see `DataService.join_command`."""
    join_file = join_file_of(name, target, token)
    if inline:
        return f"dsnb worker --join - <<'END'\n{join_file.to_text()}\nEND"
    folder = discovery.runtime_dir()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / f"{name}{SUFFIX}"
    write_join_file(path, join_file)
    print(f"dsnb: copy {path} to the other machine first, as with scp: anyone who has it can run code on the workers")
    return f"dsnb worker --join {path}"
