"""The columns of the table of grants."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gpushare.cli.command import NOTHING
from gpushare.errors import UsageError
from gpushare.processes.users import user_name
from gpushare.text import links
from gpushare.text.overview import extra_milli, guaranteed_milli, short_id, without_directory
from gpushare.text.printable import printable
from gpushare.text.rules import ENDED
from gpushare.text.sentences import clock
from gpushare.text.units import format_size, format_time


class Column(NamedTuple):
    """`text`: its help. `cell`: of a grant and one of its devices. `value`: the number to sort by, over all devices of
    a grant; None: sorted by the cell of the first. `rank`: of two columns that do not both fit on a terminal the one of
    higher rank is left out; 0: never. `silent`: whether a row's cell says nothing. `cut`: whether a terminal shows only
    as much of it as there is room for. `ended`: whether it is known of a grant that has ended. `look`: a colour, where
    a grant's cell has one."""

    name: str
    title: str
    text: str
    cell: Callable[[Any, Any], str]
    value: Callable[[Any], int] | None = None
    rank: int = 0
    silent: Callable[[Any, Any], bool] | None = None
    cut: bool = False
    ended: bool = True
    look: Callable[[Any], str] | None = None

    @property
    def is_text(self) -> bool:
        """Whether it is aligned to the left, and sorted from A to Z."""
        return self.value is None

    def of(self, grant: Any, device: Any) -> str:
        """The cell, safe for a terminal."""
        known = self.ended or grant["phase"] not in ENDED
        return printable(self.cell(grant, device)) if known else NOTHING

    def says_nothing(self, rows: Sequence[tuple[Any, Any]]) -> bool:
        """Whether it may be left out for all these grants and devices."""
        silent = self.silent
        return silent is not None and all(silent(grant, device) for grant, device in rows)


def _sum(name: str) -> Callable[[Any], int]:
    return lambda grant: sum(device[name] for device in grant["devices"])


def _time(name: str, title: str, text: str, field: str, rank: int) -> Column:
    """A column of times of the last second that are mostly zero."""

    def cell(_: Any, device: Any) -> str:
        return format_time(device[field]) if device[field] else NOTHING

    return Column(name, title, text, cell, _sum(field), rank, lambda _, device: not device[field], ended=False)


def _phase(grant: Any, _: Any) -> str:
    """The phase; of a grant whose memory is away also since when, and whether it waits for it."""
    if grant["phase"] != "suspended":
        return str(grant["phase"])
    memory = grant["residency"]
    since = f"suspended {clock(memory['since_ns'], '%H:%M')}" if memory["since_ns"] else "suspended"
    return f"{since}, wanted" if memory["wanted"] else since


def _extra(_: Any, device: Any) -> str:
    milli = extra_milli(device)
    return f"+{format_time(milli)}" if milli else NOTHING


def held(device: Any) -> str:
    """What the grant holds on the device, and what it has in host memory."""
    hosted = device["memory_hosted_bytes"]
    here = format_size(max(0, device["memory_bytes"] - hosted))
    return f"{here} +{format_size(hosted)} hosted" if hosted else here


def _limit(_: Any, device: Any) -> str:
    limit, borrowed = format_size(device["memory_limit_bytes"]), device["memory_borrowed_bytes"]
    return f"{limit}, {format_size(borrowed)} borrowed" if borrowed else limit


def _seconds_old(grant: Any) -> int:
    return max(0, time.time_ns() - int(grant["created_ns"])) // 10**9


def _age(grant: Any, _: Any) -> str:
    seconds = _seconds_old(grant)
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def _pod(grant: Any) -> str:
    pod = grant["workload"]["pod"]
    return f"{pod['namespace']}/{pod['name']}" if pod is not None else ""


def _container(grant: Any) -> str:
    return short_id(grant["workload"]["container"])


def _who(grant: Any, _: Any) -> str:
    return _pod(grant) or _container(grant) or user_name(grant["uid"])


def _program(grant: Any, _: Any) -> str:
    return without_directory(grant["workload"]["program"]) or NOTHING


def attachments(grant: Any) -> Any:
    """The grant's living attachments."""
    return grant.get("attachments") or []


def _colour(grant: Any) -> str:
    return {"good": "green", "fair": "yellow"}.get(worst, "red") if (worst := links.worst(attachments(grant))) else ""


COLUMNS = (
    Column("grant", "GRANT", "id of the grant", lambda grant, _: grant["id"]),
    Column(
        "tenant",
        "TENANT",
        "whose share it is",
        lambda grant, _: grant["tenant"],
        rank=6,
        silent=lambda grant, _: grant["tenant"] == "default",
    ),
    Column("class", "CLASS", "kind of work it was asked for", lambda grant, _: grant["class"]),
    Column(
        "phase", "PHASE", "where in its life it is", _phase, rank=5, silent=lambda grant, _: grant["phase"] == "active"
    ),
    Column(
        "device",
        "DEV",
        "number of the device",
        lambda _, device: str(device["index"]),
        lambda grant: min(device["index"] for device in grant["devices"]),
        rank=7,
        silent=lambda _, device: device["index"] == 0,
    ),
    Column(
        "asked",
        "ASKED",
        "time that was asked for",
        lambda _, device: format_time(device["time_milli"]),
        _sum("time_milli"),
        rank=13,
        silent=lambda _, device: device["time_milli"] == guaranteed_milli(device),
    ),
    Column(
        "guaranteed",
        "GUARANTEED",
        "time that was asked for and granted: it gets that whenever it wants it",
        lambda _, device: format_time(guaranteed_milli(device)),
        lambda grant: sum(map(guaranteed_milli, grant["devices"])),
        rank=1,
        ended=False,
    ),
    Column(
        "extra",
        "EXTRA",
        "what its tenant's guarantee adds to that, since no grant has asked for it",
        _extra,
        lambda grant: sum(map(extra_milli, grant["devices"])),
        rank=2,
        silent=lambda _, device: not extra_milli(device),
        ended=False,
    ),
    Column(
        "got",
        "GOT",
        "time that it had in the last second",
        lambda _, device: format_time(device["used_milli"]),
        _sum("used_milli"),
        ended=False,
    ),
    _time("borrowed", "BORROWED", "of that, what others left idle", "borrowed_milli", 11),
    _time("lent", "LENT", "of its guarantee and extra, what others used", "lent_milli", 12),
    _time("waited", "WAITED", "how much of the second it waited for the device", "waited_milli", 10),
    Column("memory", "MEMORY", "device memory it holds", lambda _, device: held(device), _sum("memory_bytes"), rank=3),
    Column("limit", "LIMIT", "memory it may hold", _limit, _sum("memory_limit_bytes"), rank=9),
    Column(
        "turns",
        "TURNS",
        "turns that it had since the daemon started",
        lambda _, dev: str(dev["leases"]),
        _sum("leases"),
    ),
    Column(
        "pids",
        "PIDS",
        "processes that have joined",
        lambda grant, _: str(len(grant["processes"])),
        lambda grant: len(grant["processes"]),
    ),
    Column("age", "AGE", "time since it was made", _age, _seconds_old, rank=8),
    Column("user", "USER", "user who owns it", lambda grant, _: user_name(grant["uid"])),
    Column(
        "container", "CONTAINER", "container, as its engine names it", lambda grant, _: _container(grant) or NOTHING
    ),
    Column("pod", "POD", "pod, as NAMESPACE/NAME", lambda grant, _: _pod(grant) or NOTHING),
    Column("who", "WHO", "pod or else container or else user", _who, rank=4),
    Column(
        "from",
        "FROM",
        "machine whose programs use it over a carrier, or how many",
        lambda grant, _: links.hosts(attachments(grant)) or NOTHING,
        rank=3,
        silent=lambda grant, _: not attachments(grant),
    ),
    Column(
        "link",
        "LINK",
        "longest round trip of their links, and bits per second; its colour: the class at the link check",
        lambda grant, _: links.brief(attachments(grant)) or NOTHING,
        rank=3,
        silent=lambda grant, _: not attachments(grant),
        look=_colour,
    ),
    Column("program", "PROGRAM", "command line of its first process", _program, cut=True),
    Column(
        "command",
        "COMMAND",
        "the same, with the program's directory",
        lambda grant, _: grant["workload"]["program"] or NOTHING,
        cut=True,
    ),
    Column(
        "reason",
        "ENDED",
        "why it has ended",
        lambda grant, _: grant["reason"] or NOTHING,
        silent=lambda grant, _: not grant["reason"],
        cut=True,
    ),
)
BY_NAME = {column.name: column for column in COLUMNS}
DEFAULT = (
    *("grant", "tenant", "phase", "device", "asked", "guaranteed", "extra", "got", "borrowed", "lent", "waited"),
    *("memory", "limit", "age", "who", "from", "link", "program"),
)
"""Columns unless others are asked for; with ended grants also `reason`."""


def parse(text: str) -> list[Column]:
    """Parses names of columns, separated by commas. Raises UsageError."""
    names = [name.strip().lower() for name in text.split(",")]
    if wrong := [name for name in names if name not in BY_NAME]:
        raise UsageError(f"no column {wrong[0][:40]!r}: there are {', '.join(BY_NAME)}")
    return [BY_NAME[name] for name in names]


def order(text: str) -> tuple[Column, bool]:
    """Parses the column to sort by, and whether in reverse: `-memory`. Raises UsageError."""
    [column] = parse(text.removeprefix("-").replace(",", " "))
    return column, text.startswith("-")
