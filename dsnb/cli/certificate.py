"""`dsnb certificate`: show a service's certificate, replace it, and write join files."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dsnb.cli.options import add_command
from dsnb.errors import InvalidArgumentError

if TYPE_CHECKING:
    from dsnb.cli.options import Commands

DESCRIPTION = """\
Show the certificate of a service that other machines reach, replace it, or write a join file.

Run it on the machine of the service. `--join-file` writes the file with which other machines join."""
EXAMPLES = """\
  dsnb certificate                                   the fingerprint of the only service of yours here
  dsnb certificate digits --join-file digits.join    a file for `dsnb worker --join` and dsnb.connect; keep it private
  dsnb certificate --new --work-dir digits           a new certificate, from the dispatcher's next start on"""


def add_to(commands: Commands) -> None:
    parser = add_command(commands, "certificate", run, DESCRIPTION, EXAMPLES)
    parser.add_argument(
        "service", nargs="?", help="the name of a service that runs here (default: the only one of yours)"
    )
    parser.add_argument("--join-file", metavar="FILE", help="write the join file of the service here, with mode 0600")
    parser.add_argument(
        "--new",
        action="store_true",
        help="make a new certificate in the folder of `--work-dir`. Start the dispatcher there again: it then refuses "
        "all peers until they have a new join file",
    )
    parser.add_argument("--work-dir", metavar="FOLDER", help="the dispatcher's folder, for `--new`")


def run(args: argparse.Namespace) -> int:
    """Show a certificate's fingerprint, after `--new` that of the new one."""
    if args.new or args.work_dir is not None:
        return _renew(args)
    from dsnb.wire import discovery
    from dsnb.wire.addresses import target_address
    from dsnb.wire.certificates import fingerprint
    from dsnb.wire.join_file import JoinFile, write_join_file

    found = discovery.find(args.service)
    shown = fingerprint(found.certificate) if found.certificate else "none: its connections are not encrypted"
    print(f"{found.name} at {found.target}: {shown}")
    if args.join_file is not None:
        address = target_address(found.target)
        write_join_file(
            args.join_file,
            JoinFile(name=found.name, address=address, token=found.token, certificate=found.certificate),
        )
        print(f"{args.join_file}: anyone who has this file can run code on the workers of the service")
    return 0


def _renew(args: argparse.Namespace) -> int:
    if not args.new or args.work_dir is None or args.service is not None or args.join_file is not None:
        raise InvalidArgumentError(
            "--new goes with --work-dir, and with nothing else",
            did="no certificate was changed",
            hint="dsnb certificate --new --work-dir FOLDER",
        )
    from dsnb.wire.certificates import fingerprint, renew_certificate

    print(f"{args.work_dir}: {fingerprint(renew_certificate(args.work_dir))}")
    print("it is used from the dispatcher's next start in this folder on; then copy new join files to all peers")
    return 0
