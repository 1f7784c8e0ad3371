"""gpushare gang ..."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from gpushare.cli.command import Family, add_common, answer, client, print_json, table
from gpushare.cli.grants.grant import add_share_options, add_wait, share_request, time_to_live
from gpushare.cli.parser import Parser
from gpushare.errors import UsageError

WAIT_SECONDS = 10.0
"""Less than the time to live of the parts that are prepared on other nodes meanwhile."""
_TITLES = ("GANG", "PART", "PHASE", "UID", "GRANTS")


class GangCommand(Family):
    """reserve a job's shares on several nodes, all or none

    A scheduler prepares a part of the job on each node, then commits all parts or aborts them: the job gets its shares
    on all nodes or on none.
    """

    examples = (
        ("gpushare gang prepare job-7 --memory 4GiB --time 50%", "on each node, before the job starts"),
        ("gpushare gang commit job-7", "on each node, once all nodes have prepared it"),
    )

    def prepare_parser(self, parser: Parser) -> None:

        prepare = parser.verb(
            "prepare",
            self._prepare,
            "reserve the grants of a part; nothing can run in them before the commit",
            ("gpushare gang prepare job-8 --memory 4GiB --time 50%", "one grant on this node"),
            (
                "gpushare gang prepare job-9 --grants parts.json --ttl 300",
                "grants from a file; five minutes to commit",
            ),
        )
        add_share_options(prepare, instead="--grants")
        prepare.option("--grants", "FILE", "instead: a JSON list of grants, as POST /v1/grants takes them; - is stdin")
        prepare.flag("--keep", "keep the grant until it is released")
        add_wait(prepare, WAIT_SECONDS)
        prepare.option("--ttl", "S", "seconds within which the part must be committed (default 60)", time_to_live)

        commit = parser.verb(
            "commit",
            self._commit,
            "let programs run in the grants of a part",
            ("gpushare gang commit job-8", "its grants can be used now"),
        )

        abort = parser.verb(
            "abort",
            self._abort,
            "end a part for good, even before it is prepared",
            ("gpushare gang abort job-9", "ends its grants here; a later prepare is refused"),
        )

        for verb in (prepare, commit, abort):
            verb.add_argument("id", help="the gang's id; use a new one for each attempt to place the job")
            verb.option("--part", "NAME", "name of the part, if the gang has several on this node (default 0)")
            verb.option("--uid", "UID", "user id of the gang's owner, when called by root (default: the caller)", int)

        every = parser.verb(
            "list",
            self._list,
            "all parts on this node, including recently ended ones",
            ("gpushare gang list", "each part with its phase and grants"),
        )

        for verb in (prepare, commit, abort, every):
            add_common(verb)

    def _prepare(self, args: argparse.Namespace) -> int:
        shares = [given is not None for given in (args.memory, args.time)]
        if any(shares) if args.grants is not None else not all(shares):
            raise UsageError("give --memory and --time, or --grants FILE")
        one = {**share_request(args), "keep": args.keep or None}
        grants: Any = [one] if args.grants is None else _read(args.grants)
        daemon = client(args)
        part = daemon.prepare(args.id, grants, ttl_seconds=args.ttl, wait_seconds=args.wait, **_which(args))
        return _print(args, part)

    def _commit(self, args: argparse.Namespace) -> int:
        return _print(args, client(args).commit(args.id, **_which(args)))

    def _abort(self, args: argparse.Namespace) -> int:
        return _print(args, client(args).abort(args.id, **_which(args)))

    def _list(self, args: argparse.Namespace) -> int:
        parts = client(args).gangs()
        if args.json:
            print_json({"parts": parts})
        elif not parts:
            print("no parts of gangs")
        else:
            table(_TITLES, [_row(part) for part in parts])
        return 0


def _which(args: argparse.Namespace) -> dict[str, Any]:
    return {"part": args.part, "uid": args.uid}


def _row(part: Any) -> list[object]:
    return [part["gang"], part["part"], part["phase"], part["uid"], " ".join(one["id"] for one in part["grants"])]


def _print(args: argparse.Namespace, part: Any) -> int:
    return answer(args, part, lambda: print(" ".join([part["phase"], *(one["id"] for one in part["grants"])])))


def _read(name: str) -> list[dict[str, Any]]:
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        found = json.loads(data.decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{name}: {error}: name a file with a JSON list of grants") from None
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise UsageError(f'{name} has no JSON list of grants: write [{{"memory": "4GiB", "time": "30%"}}]')
    return found
