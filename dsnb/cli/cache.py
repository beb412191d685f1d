"""`dsnb cache`: list, check and remove the recordings of `Dataset.cache` and the results of a training cache."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

import msgspec

from dsnb.cli.options import add_command, add_json
from dsnb.monitor.formatting import format_bytes
from dsnb.monitor.tables import Table, text_table

if TYPE_CHECKING:
    from dsnb.cache.recordings.catalogue import CatalogueEntry
    from dsnb.cli.options import Commands

DESCRIPTION = """\
List, check and remove what `Dataset.cache` has recorded, and the results of a training cache.

In a directory, nothing is removed while it is being read; on a server or in a remote store, nothing is removed while
it is being written."""
EXAMPLES = """\
  dsnb cache ls /data/cache              each recording with its pipeline, the one read last first
  dsnb cache verify /data/cache          read everything and compare it with its checksums
  dsnb cache rm /data/cache 1f3a         remove the recordings whose key begins with 1f3a; without a key, all
  dsnb cache size /data/cache --json     how many bytes there are, for a script
  dsnb cache ls redis://host:6379/0      the same on a server; or s3://bucket/cache, and what else fsspec knows
  dsnb cache ls ~/.cache/dsnb/training   the results of a training cache"""
_MAX_PIPELINE_CHARS = 60


def add_to(commands: Commands) -> None:
    parser = add_command(commands, "cache", run, DESCRIPTION, EXAMPLES)
    actions = {
        "ls": "list the recordings",
        "verify": "compare them with their checksums; the exit code is 1 if one is damaged",
        "rm": "remove them",
        "size": "tell how large they are",
    }
    parser.add_argument("action", choices=actions, help="; ".join(f"{name}: {does}" for name, does in actions.items()))
    parser.add_argument("place", help="what was given to `cache`: a directory or an address; or a training cache's")
    parser.add_argument(
        "keys", nargs="*", metavar="KEY", help="the first characters of keys, as `ls` shows them (default: all keys)"
    )
    add_json(parser, "print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Run the chosen action and return the exit code."""
    return {"ls": _list, "verify": _verify, "rm": _remove, "size": _size}[args.action](args)


def _list(args: argparse.Namespace) -> int:
    from dsnb.storage.urls import without_password

    found = _entries(args)
    if args.as_json:
        print(json.dumps({"recordings": msgspec.to_builtins(found)}))
        return 0
    header = ["key", "state", "elements", "size", "in use", "pipeline"]
    listed = Table.of_text(header, map(_row, found))
    print("\n".join(text_table(listed)) or f"nothing is recorded in {without_password(args.place)}")
    return 0


def _entries(args: argparse.Namespace) -> list[CatalogueEntry]:
    from dsnb.cache.recordings.catalogue import entries

    return entries(args.place, args.keys)


def _row(entry: CatalogueEntry) -> list[str]:
    pipeline = (
        entry.pipeline
        if len(entry.pipeline) <= _MAX_PIPELINE_CHARS
        else f"{entry.pipeline[: _MAX_PIPELINE_CHARS - 1]}…"
    )
    used = "yes" if entry.in_use else "no"
    elements = "-" if entry.state in ("result", "fingerprint") else f"{entry.elements:,}"
    return [entry.key[:12], entry.state, elements, format_bytes(entry.nbytes), used, pipeline]


def _verify(args: argparse.Namespace) -> int:
    from dsnb.cache.recordings.catalogue import verify

    found = list(verify(args.place, args.keys))
    damaged = {key: problem for key, problem in found if problem}
    if args.as_json:
        print(json.dumps({"checked": len(found), "damaged": damaged}))
    else:
        print(
            "\n".join(
                [*(f"{key[:12]} {problem}" for key, problem in damaged.items()), _summary(len(found), len(damaged))]
            )
        )
    return 1 if damaged else 0


def _summary(checked: int, damaged: int) -> str:
    recordings = f"{checked} recording{'' if checked == 1 else 's'}"
    if damaged:
        return f"{damaged} of {recordings} are damaged: damaged chunks are not read; the next run records them again"
    return f"{recordings}: all as they were written"


def _remove(args: argparse.Namespace) -> int:
    from dsnb.cache.recordings.catalogue import remove

    freed = remove(args.place, args.keys)
    print(json.dumps({"freed_bytes": freed}) if args.as_json else f"{format_bytes(freed)} became free")
    return 0


def _size(args: argparse.Namespace) -> int:
    nbytes = sum(entry.nbytes for entry in _entries(args))
    print(json.dumps({"bytes": nbytes}) if args.as_json else format_bytes(nbytes))
    return 0
