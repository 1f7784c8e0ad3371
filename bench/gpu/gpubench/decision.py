"""What a result decides, as data for its JSON file and as lines for its table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gpubench import defaults
from gpubench.rows import Row, Rows
from gpubench.targets import TARGETS
from gpubench.verdicts import CLAIMS, NOT_MEASURED, ask

Json = dict[str, Any]


def made(parts: Mapping[str, Sequence[Row]]) -> Json:
    """Of the newest good rows of each part. Never raises."""
    rows = Rows(parts)
    try:
        beside = defaults.beside(rows, defaults.read())
    except (OSError, ValueError):  # not a checkout
        beside = []
    return {
        "claims": [asdict(verdict) for verdict in ask(CLAIMS, rows)],
        "targets": [asdict(verdict) for verdict in ask(TARGETS, rows)],
        "defaults": beside,
    }


def _cell(text: str) -> str:
    return text.replace("|", "/")


def _judged(title: str, verdicts: Sequence[Json]) -> list[str]:
    known = [verdict for verdict in verdicts if verdict["verdict"] != NOT_MEASURED]
    lines = ["", f"| {title} | verdict | figures |", "|---|---|---|"] if known else []
    for one in known:
        lines.append(f"| {_cell(one['claim'])} | {one['verdict']} | {_cell(one['figures'])} |")
    open_ = [verdict for verdict in verdicts if verdict["verdict"] == NOT_MEASURED]
    if open_:
        lines.append("")
    for one in open_:
        lines.append(f"- not measured: {one['claim']}. Missing: {one['figures']}")
    return lines


def lines(decision: Json, heading: str = "##") -> list[str]:
    """Markdown; claims, then targets, then the simulator's defaults."""
    found = ["", f"{heading} What these numbers decide", ""]
    found += ["gpushare is built on these claims. Where a measurement contradicts one, the measurement is right."]
    found += _judged("claim", decision["claims"])
    found += _judged("target", decision["targets"])
    if decision["defaults"]:
        found += ["", f"{heading} The simulator's defaults beside this device", ""]
        found += ["`native/sim` follows what a device does; these are the defaults that this run measured.", ""]
        found += ["| default | in its source | simulated | this device |", "|---|---|---|---|"]
        for one in decision["defaults"]:
            found.append(f"| {one['what']} | `{one['name']}` | {one['simulated']} | {_cell(one['device'])} |")
    return found
