"""The page's usage section: the ledgers of the nodes that it shows, added up and priced as `gpushare usage` does."""

import asyncio
import csv
import io
import zoneinfo
from collections.abc import Mapping, Sequence
from typing import Any

from gpushare.dashboard.node import Node
from gpushare.errors import FailedError, GpushareError, UnreachableError, UsageError
from gpushare.paths import PRICES
from gpushare.policy.usage import bill, teams
from gpushare.policy.usage.bill import Asked
from gpushare.policy.usage.billing import Prices
from gpushare.text import amounts, calendar

_TEXT_MAX = 64
_ZONES = zoneinfo.ZoneInfo  # imported before root's rights are given up: afterwards it may not be readable


class Question:
    """What a page asks for. `query`: `since`, `until`, `by`, `tz`, as the command's options. Raises UsageError."""

    def __init__(self, query: Mapping[str, str], prices: Prices | None) -> None:
        given = {name: query.get(name) or None for name in ("since", "until", "by", "tz")}
        if any(value is not None and len(value) > _TEXT_MAX for value in given.values()):
            raise UsageError(f"since, until, by and tz have at most {_TEXT_MAX} characters each")
        by = given["by"] or "week"
        if by not in calendar.PERIODS:
            raise UsageError(f"by is one of {', '.join(calendar.PERIODS)}")
        where = calendar.zone(given["tz"] or "local")
        self.asked = Asked(by, prices, where)
        self.query = calendar.question(given["since"], given["until"], by, where)


class Answer:
    """What one node answers: a Usage, and `tenants` and `capacity` as they are now."""

    def __init__(self, name: str, usage: Any, tenants: Any, capacity: int) -> None:
        self.name, self.usage, self.tenants, self.capacity = name, usage, tenants, capacity


async def answers(nodes: Sequence[Node], question: Question) -> tuple[list[Answer], list[dict[str, str]]]:
    """The answers of the nodes, and why others have none."""
    found = await asyncio.gather(*(_answer(node, question) for node in nodes), return_exceptions=True)
    good, missing = list[Answer](), list[dict[str, str]]()
    for node, one in zip(nodes, found, strict=True):
        if isinstance(one, Answer):
            good.append(one)
        elif isinstance(one, GpushareError):
            why = node.explained(str(one)) if isinstance(one, UnreachableError) else str(one)
            missing.append({"node": node.source.name, "why": why})
        else:
            raise one
    return good, missing


async def _answer(node: Node, question: Question) -> Answer:
    asked: Any = question.query
    usage = await node.client.usage(**asked)
    tenants, about = await node.client.tenants(), await node.client.node()
    return Answer(node.source.name, usage, tenants, about["capacity"]["time"])


def shown(found: Sequence[Answer], missing: Sequence[Any], question: Question) -> Any:
    """The section's data, in which texts are ready to be shown; only `missing` where no node has answered."""
    if not found:
        return {"missing": list(missing)}
    asked = question.asked
    rows = [row for one in found for row in one.usage["rows"]]
    whole = bill.added(rows)
    unit = bill.unit([whole])
    parents = {one["name"]: one["parent"] for answer in found for one in answer.tenants}
    by_team = teams.tree(rows, parents)

    def cells(sums: bill.Row) -> dict[str, str]:
        return bill.texts(sums, whole, unit, asked.prices)

    spent = _spent(one.usage["devices"] for one in found)
    return {
        "since": calendar.iso(min(one.usage["since_ns"] for one in found), asked.where),
        "until": calendar.iso(max(one.usage["until_ns"] for one in found), asked.where),
        "by": asked.by,
        "titles": list(cells(whole)),
        "teams": [
            {
                "name": one.name,
                "level": one.level,
                "own": one.own,
                "used": bill.used(one.sums),
                "cells": [*cells(one.sums).values()],
            }
            for one in by_team
        ],
        "total": [*cells(whole).values()],
        "periods": _periods(found, by_team, parents, asked),
        "idle": _idle(found, spent, asked),
        "devices": bill.devices(spent, asked.prices),
        "currency": asked.prices.currency if asked.prices else "",
        "hint": "" if asked.prices else bill.hint(PRICES),
        "missing": list(missing),
    }


def _spent(parts: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in parts:
        for name, ns in part.items():
            found[name] = found.get(name, 0) + ns
    return found


def _periods(found: Sequence[Answer], by_team: Sequence[teams.Team], parents: Any, asked: Asked) -> list[Any]:
    """A row for each period, with what the teams used in it in the order of `by_team`."""
    spent: dict[int, list[Any]] = {}
    rows: dict[int, list[Any]] = {}
    for answer in found:
        for one in answer.usage["periods"]:
            spent.setdefault(one["begins_ns"], []).append(one["devices"])
        for row in answer.usage["rows"]:
            rows.setdefault(row["begins_ns"], []).append(row)
    tops = [one.name for one in by_team if one.level == 0]
    unit = amounts.unit(max(bill.used(bill.added(rows.get(at, []))), _spent(spent[at])["idle_ns"]) for at in spent)
    shown = []
    for begins, parts in sorted(spent.items()):
        devices, here = _spent(parts), rows.get(begins, [])
        used = {one.name: bill.used(one.sums) for one in teams.tree(here, parents) if one.level == 0}
        whole = bill.added(here)
        shown.append(
            {
                "name": calendar.named(begins, asked.by, asked.where),
                "used": [used.get(name, 0) for name in tops],
                "whole": devices["wall_ns"],
                "texts": {
                    "USED": unit.text(bill.used(whole)),
                    **({"COST": bill.cost(whole, asked.prices)} if asked.prices else {}),
                    "IDLE": unit.text(devices["idle_ns"]),
                    **({"IDLE COST": bill.idle_cost(devices, asked.prices)} if asked.prices else {}),
                },
                "part": round(1000 * bill.used(whole) / devices["wall_ns"]) if devices["wall_ns"] else 0,
            }
        )
    return shown


def _idle(found: Sequence[Answer], spent: bill.Row, asked: Asked) -> Any:
    parts: dict[str, int] = {}
    for one in found:
        for name, ns in teams.unused(one.tenants, one.capacity, one.usage["rows"], one.usage["devices"]).items():
            parts[name] = parts.get(name, 0) + ns
    unit = amounts.unit([spent["idle_ns"]])

    def row(name: str, ns: int) -> Any:
        priced = bill.idle_cost({"idle_ns": ns}, asked.prices) if asked.prices else ""
        part = round(1000 * ns / spent["wall_ns"]) if spent["wall_ns"] else 0
        return {"name": name, "time": unit.text(ns), "cost": priced, "part": part}

    return {
        **row("", spent["idle_ns"]),
        "of": [row(name, ns) for name, ns in sorted(parts.items(), key=lambda one: (-one[1], one[0]))],
    }


def as_csv(found: Sequence[Answer], question: Question) -> str:
    """The rows as `gpushare usage --format csv` has them; of several nodes with a column that names each. Raises
    FailedError where none has answered."""
    if not found:
        raise FailedError("no node has answered")
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    for number, one in enumerate(found):
        lines = bill.records(one.usage, one.usage["rows"], question.asked)
        for line, record in enumerate(lines):
            if line or not number:
                name = [] if len(found) == 1 else [one.name if line else "node"]
                table.writerow([*name, *record])
    return out.getvalue()
