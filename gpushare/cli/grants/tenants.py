"""gpushare tenants ..."""

import argparse
from typing import Any

from gpushare.cli.command import add_json, add_socket, add_verb, checked, client, print_json, say
from gpushare.cli.grants.grant import add_placement
from gpushare.cli.look import render
from gpushare.cli.parser import Parser
from gpushare.errors import UsageError
from gpushare.text.units import parse_node_time, parse_size


def _whole(text: str) -> int:
    if not text.isascii() or not text.removeprefix("-").isdecimal():
        raise UsageError(f"{text!r} is not a whole number")
    return int(text)


def _names(text: str) -> list[int | str]:
    return [int(name) if name.isascii() and name.isdecimal() else name for name in text.split(",") if name]


class TenantsCommand:
    """teams and users: their guarantees and limits, as a tree"""

    examples = (
        ("gpushare tenants list", "the tree, with each tenant's use in the last second"),
        ("sudo gpushare tenants set research --time 75% --memory 8GiB --groups ml", "a guarantee for a team"),
    )

    def prepare_parser(self, parser: Parser) -> None:
        verbs = parser.add_subparsers(metavar="VERB", required=True)
        every = add_verb(
            verbs,
            "list",
            "all tenants as a tree; use in the last second includes the tenants below",
            ("gpushare tenants list", "guarantees, limits and use"),
        )
        every.set_defaults(verb=self._list)

        define = add_verb(
            verbs,
            "set",
            "create a tenant or replace its quota, kept in tenants.toml (root)",
            ("sudo gpushare tenants set research --time 75% --memory 8GiB", "three quarters of a device, 8 GiB"),
            ("sudo gpushare tenants set research/ada --time 25% --users ada", "a part of that for one user"),
        )
        define.add_argument("name", help="as research or org/team; options not given are reset")
        define.add_argument(
            "--parent",
            metavar="TENANT",
            help="tenant that it is part of (default: the tenant whose name begins its name)",
        )
        define.add_argument(
            "--time",
            type=checked(parse_node_time),
            metavar="SHARE",
            help="guaranteed time; six devices are 600%% or 6000 (milli) (default 0)",
        )
        define.add_argument(
            "--memory",
            type=checked(parse_size),
            metavar="SIZE",
            help="guaranteed memory over all devices, as 8GiB (default none)",
        )
        define.add_argument(
            "--time-limit",
            type=checked(parse_node_time),
            metavar="SHARE",
            help="upper limit of the time, written as --time (default: all devices)",
        )
        define.add_argument(
            "--weight",
            type=checked(_whole),
            metavar="N",
            help="its weight when idle time is split (default 1; 0: only what no other tenant wants)",
        )
        define.add_argument("--tier", type=checked(_whole), metavar="N", help="a higher tier borrows first (default 0)")
        define.add_argument(
            "--users", type=_names, metavar="A,B", help="users who may use it, by name or uid (default: root)"
        )
        define.add_argument(
            "--groups",
            type=_names,
            metavar="A,B",
            help="groups whose members may use it, by name or gid (default none)",
        )
        add_placement(define, "default: as the tenant above or the node says")
        define.set_defaults(verb=self._set)

        remove = add_verb(
            verbs,
            "remove",
            "remove a tenant that has no grants (root)",
            ("sudo gpushare tenants remove research/ada", "its guarantee returns to research"),
        )
        remove.add_argument("name", help="the tenant's name")
        remove.set_defaults(verb=self._remove)
        for verb in (every, define, remove):
            add_json(verb)
            add_socket(verb)

    def run(self, args: argparse.Namespace) -> int:
        status: int = args.verb(args)
        return status

    def _list(self, args: argparse.Namespace) -> int:
        found = client(args).tenants()
        if args.json:
            print_json({"tenants": found})
            return 0
        render.tenants(found)
        for tenant in found:
            if tenant["degraded"]:
                say(f"{tenant['name']} is degraded, devices do not work: it has {render.degraded(tenant)}")
        return 0

    def _set(self, args: argparse.Namespace) -> int:
        names = ("parent", "time", "memory", "time_limit", "weight", "tier", "users", "groups", "placement")
        policy: dict[str, Any] = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
        tenant = client(args).set_tenant(args.name, policy)
        if args.json:
            print_json(tenant)
        return 0

    def _remove(self, args: argparse.Namespace) -> int:
        client(args).remove_tenant(args.name)
        if args.json:
            print_json({"removed": args.name})
        return 0
