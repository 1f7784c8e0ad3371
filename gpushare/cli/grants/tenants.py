"""gpushare tenants ..."""

import argparse
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from gpushare.cli.command import Family, add_common, answer, client, say, say_each
from gpushare.cli.grants.grant import add_placement
from gpushare.cli.look import render
from gpushare.cli.parser import Parser
from gpushare.errors import UsageError
from gpushare.text.units import format_size, format_time, parse_idle_after, parse_node_time, parse_size

UNSET = "none"
"""Value of any option of `set`: as if it had never been given."""
_TEXTS: dict[str, Callable[[Any], str]] = {
    "time": format_time,
    "time_limit": format_time,
    "memory": format_size,
    "host_memory": format_size,
    "users": lambda names: ",".join(map(str, names)),
    "groups": lambda names: ",".join(map(str, names)),
    "idle_after_seconds": lambda seconds: f"{seconds:g}s",
}
"""Of values that are not shown as they are."""
_KEYS: dict[str, Any] = {
    "parent": None,
    "time": 0,
    "memory": 0,
    "time_limit": None,
    "weight": 1,
    "tier": 0,
    "users": [],
    "groups": [],
    "placement": None,
    "host_memory": None,
    "idle_after_seconds": None,
}
"""What can be set, with what it is where it is not set."""


def _signed(text: str) -> int:
    if not text.isascii() or not text.removeprefix("-").isdecimal():
        raise UsageError(f"{text!r} is not a whole number")
    return int(text)


def _names(text: str) -> list[int | str]:
    return [int(name) if name.isascii() and name.isdecimal() else name for name in text.split(",") if name]


def _setting(
    parser: Parser, name: str, metavar: str, text: str, parse: Callable[[str], Any] = str, **more: Any
) -> None:
    parser.option(name, metavar, text, lambda given: UNSET if given == UNSET else parse(given), **more)


def _text(key: str, policy: Any) -> str:
    value = policy.get(key, _KEYS[key])
    if value is None or value == [] or (value == 0 and key in _TEXTS):
        return UNSET
    return _TEXTS.get(key, str)(value)


def changes(name: str, change: Any) -> Iterator[str]:
    """Yields what `tenants set` has done, for people. `change`: a TenantChange."""
    before, after = change["before"], change["after"]
    if before is None:
        parts = [f"{key} {_text(key, after)}" for key in _KEYS if key in after]
        yield f"made tenant {name}: {', '.join(parts) or 'with nothing guaranteed'}"
        if "users" not in after and "groups" not in after:
            until_now = ", and no longer everybody" if name == "default" else ""
            yield f"root alone may use {name}{until_now}: --users and --groups say who else may"
        return
    moved = [(key, _text(key, before), _text(key, after)) for key in _KEYS]
    lines = [f"{name}: {key} {old} -> {new}" for key, old, new in moved if old != new]
    yield from lines or [f"{name}: nothing changes"]


def warnings(name: str, change: Any) -> Iterator[str]:
    """Yields a line for each account in the call that the node does not have."""
    unknown = change["unknown"]
    if unknown is None:
        yield "it is not known whether these users and groups exist: the user database did not answer in time"
        return
    for kind, names in (("user", unknown["users"]), ("group", unknown["groups"])):
        for one in names:
            yield f"this node has no {kind} {one}: {name} has it all the same, and nobody can use it as that yet"


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
            "create a tenant, or change what is named of one; kept in tenants.toml (root)",
            ("sudo gpushare tenants set research --time 75% --memory 8GiB", "three quarters of a device, 8 GiB"),
            ("sudo gpushare tenants set research/ada --time 25% --users ada", "a part of that for one user"),
            ("sudo gpushare tenants set research --memory none", "no guaranteed memory; all else stays"),
        )
        define.epilog = f"The value `{UNSET}` makes any option as if it had never been given."
        define.add_argument("name", help="as research or org/team")
        option = partial(_setting, define)
        option("--parent", "TENANT", "tenant that it is part of (default: the tenant whose name begins its name)")
        option("--time", "SHARE", "guaranteed time; six devices are 600%% or 6000m (default none)", parse_node_time)
        option("--memory", "SIZE", "guaranteed memory over all devices, as 8GiB (default none)", parse_size)
        option(
            "--time-limit",
            "SHARE",
            "upper limit of the time, written as --time (default: all devices)",
            parse_node_time,
        )
        option(
            "--weight",
            "N",
            "its weight when idle time is split (default 1; 0: only what no other tenant wants)",
            _signed,
        )
        option("--tier", "N", "a higher tier borrows first (default 0)", _signed)
        option("--users", "A,B", "all users who may use it besides root, by name or uid (default none)", _names)
        option("--groups", "A,B", "all groups whose members may use it, by name or gid (default none)", _names)
        add_placement(define, "default: as the tenant above or the node says", UNSET)
        option(
            "--host-memory",
            "SIZE",
            "most of the node's own memory that its device memory may move to (default: as much as there is)",
            parse_size,
        )
        option(
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
        given = {key: getattr(args, key) for key in _KEYS if getattr(args, key) is not None}
        patch: Any = {key: None if value == UNSET else value for key, value in given.items()}
        change = client(args).change_tenant(args.name, patch)
        for line in warnings(args.name, change):
            say(f"gpushare: {line}", sys.stderr)
        return answer(args, change, lambda: say_each(changes(args.name, change)))

    def _remove(self, args: argparse.Namespace) -> int:
        client(args).remove_tenant(args.name)
        return answer(args, {"removed": args.name})
