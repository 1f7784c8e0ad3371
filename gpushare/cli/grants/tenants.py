"""gpushare tenants ..."""

import argparse
from typing import Any

from gpushare.cli.command import Family, add_common, answer, client
from gpushare.cli.grants.grant import add_placement
from gpushare.cli.look import render
from gpushare.cli.parser import Parser
from gpushare.errors import UsageError
from gpushare.text.units import parse_idle_after, parse_node_time, parse_size


def _signed(text: str) -> int:
    if not text.isascii() or not text.removeprefix("-").isdecimal():
        raise UsageError(f"{text!r} is not a whole number")
    return int(text)


def _names(text: str) -> list[int | str]:
    return [int(name) if name.isascii() and name.isdecimal() else name for name in text.split(",") if name]


class TenantsCommand(Family):
    """teams and users: their guarantees and limits, as a tree"""

    examples = (
        ("gpushare tenants list", "the tree, with each tenant's use in the last second"),
        ("sudo gpushare tenants set research --time 75% --memory 8GiB --groups ml", "a guarantee for a team"),
    )

    def prepare_parser(self, parser: Parser) -> None:
        every = parser.verb(
            "list",
            self._list,
            "all tenants as a tree; use in the last second includes the tenants below",
            ("gpushare tenants list", "guarantees, limits and use"),
        )

        define = parser.verb(
            "set",
            self._set,
            "create a tenant or replace its quota, kept in tenants.toml (root)",
            ("sudo gpushare tenants set research --time 75% --memory 8GiB", "three quarters of a device, 8 GiB"),
            ("sudo gpushare tenants set research/ada --time 25% --users ada", "a part of that for one user"),
        )
        define.add_argument("name", help="as research or org/team; options not given are reset")
        define.option(
            "--parent", "TENANT", "tenant that it is part of (default: the tenant whose name begins its name)"
        )
        define.option("--time", "SHARE", "guaranteed time; six devices are 600%% or 6000m (default 0)", parse_node_time)
        define.option("--memory", "SIZE", "guaranteed memory over all devices, as 8GiB (default none)", parse_size)
        define.option(
            "--time-limit",
            "SHARE",
            "upper limit of the time, written as --time (default: all devices)",
            parse_node_time,
        )
        define.option(
            "--weight",
            "N",
            "its weight when idle time is split (default 1; 0: only what no other tenant wants)",
            _signed,
        )
        define.option("--tier", "N", "a higher tier borrows first (default 0)", _signed)
        define.option("--users", "A,B", "users who may use it, by name or uid (default: root)", _names)
        define.option("--groups", "A,B", "groups whose members may use it, by name or gid (default none)", _names)
        add_placement(define, "default: as the tenant above or the node says")
        define.option(
            "--host-memory",
            "SIZE",
            "most of the node's own memory that its device memory may move to (default: as much as there is)",
            parse_size,
        )
        define.option(
            "--idle-after",
            "S",
            "after how long without work memory that its grants lend counts as idle, as 30s, 5m or 2h (default: as the"
            " tenant above or the node says)",
            parse_idle_after,
            dest="idle_after_seconds",
        )

        remove = parser.verb(
            "remove",
            self._remove,
            "remove a tenant that has no grants (root)",
            ("sudo gpushare tenants remove research/ada", "its guarantee returns to research"),
        )
        remove.add_argument("name", help="the tenant's name")
        for verb in (every, define, remove):
            add_common(verb)

    def _list(self, args: argparse.Namespace) -> int:
        found = client(args).tenants()
        return answer(args, {"tenants": found}, lambda: render.tenants(found))

    def _set(self, args: argparse.Namespace) -> int:
        names = (
            "parent",
            "time",
            "memory",
            "time_limit",
            "weight",
            "tier",
            "users",
            "groups",
            "placement",
            "host_memory",
            "idle_after_seconds",
        )
        policy: dict[str, Any] = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
        tenant = client(args).set_tenant(args.name, policy)
        return answer(args, tenant)

    def _remove(self, args: argparse.Namespace) -> int:
        client(args).remove_tenant(args.name)
        return answer(args, {"removed": args.name})
