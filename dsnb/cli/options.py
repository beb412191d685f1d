"""What the commands share: how they are declared, and the options that select a service."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def add_command(
    commands: Commands, name: str, run: Callable[[argparse.Namespace], int], description: str, examples: str = ""
) -> argparse.ArgumentParser:
    """Declare one command.

    Args:
        commands: The subparsers of the command line.
        name: The command's name.
        run: Called with the parsed options; returns the exit code.
        description: What the command does; the first line also appears in the list of commands.
        examples: Complete command lines, each followed by what it does.
    """
    first, _, _ = description.partition("\n")
    parser = commands.add_parser(
        name,
        help=first[0].lower() + first[1:].rstrip("."),
        description=description,
        epilog=f"examples:\n{examples}" if examples else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # otherwise `--token SECRET` would be accepted as --token-file
    )
    parser.set_defaults(run=run)
    return parser


def add_service(parser: argparse.ArgumentParser) -> None:
    """Add the options that select a service and its token."""
    parser.add_argument(
        "service",
        nargs="?",
        help="its name, as in `default`, or its address, as in `localhost:5050` (default: the only one that runs here)",
    )
    add_token_file(parser)


def add_token_file(parser: argparse.ArgumentParser, meaning: str = "") -> None:
    """Add `--token-file`. There is no `--token`: other users of the machine can see a process's arguments."""
    default = (
        "a file that holds the service's token (default: the tokens of your services on this machine are found "
        "automatically; for other services, the variable DSNB_TOKEN)"
    )
    parser.add_argument("--token-file", metavar="FILE", help=meaning or default)


def add_json(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Add `--json` with this help text."""
    parser.add_argument("--json", action="store_true", dest="as_json", help=meaning)


def add_address(parser: argparse.ArgumentParser, host: str, meaning: str) -> None:
    """Add the options for the address that a server listens on; `meaning` is the help for its host."""
    parser.add_argument(
        "--port",
        type=_port,
        default=0,
        help="the port to listen on, or a range as in 5100-5200, whose first free port is taken (default: a free port)",
    )
    parser.add_argument("--host", default=host, help=meaning)


def _port(text: str) -> int | str:
    try:
        return text if "-" in text.lstrip("-") else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number and no range of ports") from None


def given(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """The options of these names that have a value, as keyword arguments for a configuration.

    Example:
        >>> given(argparse.Namespace(port=5050, work_dir=None), "port", "work_dir")
        {'port': 5050}
    """
    values = {name: getattr(args, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def token_of(args: argparse.Namespace) -> str | None:
    """The token given by the options; None to look it up by the service's address or in the environment.

    Raises:
        NotFoundError: the file cannot be read.
        FailedPreconditionError: the file holds no valid token.
    """
    if args.token_file is None:
        return None
    from dsnb.wire.security import read_token_file

    return read_token_file(args.token_file)
