"""What gpushare is to reach on a device, and whether it did: the same targets as on the simulated one."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpubench.rows import MissingRowError, Row, Rows
from gpubench.stats import number
from gpubench.verdicts import Claim

MET, MISSED = "met", "missed"

SHARE_POINTS, LAUNCH_PERCENT, METERING_PERCENT = 2.0, 1.0, 1.0
IN_FLIGHT_MS, SPARE_MS = 2.0, 1.0
_MS = {"us": 1e-3, "ms": 1.0, "s": 1e3}


def _worst(found: Sequence[tuple[re.Match[str], Row]], key: str, limit: float, unit: str) -> tuple[str, str]:
    """Of all rows that the target speaks of, by this key of theirs."""
    values = {match["what"]: abs(row["value"] if row[key] is None else row[key]) for match, row in found}
    worst = max(values, key=lambda name: values[name])
    missed = [name for name, value in values.items() if value > limit]
    text = f"at most {number(values[worst])} {unit} ({worst}; {len(values)} measured)"
    if len(missed) > 1:
        text += f"; beyond it {len(missed)} of them"
    return MISSED if missed else MET, text


def shares(rows: Rows) -> tuple[str, str]:
    found = rows.find(("shares",), r"(?P<what>.*), gpushare: share error over 10 s", "shares over 10 s")
    return _worst(found, "high", SHARE_POINTS, "points, the worst window")


def metering(rows: Rows) -> tuple[str, str]:
    found = rows.find(("metering",), r"(?P<what>.*): busy time against CUDA events", "busy time against CUDA events")
    return _worst(found, "value", METERING_PERCENT, "% off, median")


def launches(rows: Rows) -> tuple[str, str]:
    # Of programs that run by themselves: two at once lose or win by who is served, not by what a launch costs.
    pattern = r"(?P<what>(?!.*together).*), gpushare"
    return _worst(rows.find(("overhead",), pattern, "launches"), "value", LAUNCH_PERCENT, "% fewer, median")


def steps(rows: Rows) -> tuple[str, str]:
    found = rows.find(("frameworks",), r"(?P<what>.*), gpushare", "steps of PyTorch")
    return _worst(found, "value", LAUNCH_PERCENT, "% fewer, median")


def reclaim(rows: Rows) -> tuple[str, str]:
    """To the end of the owner's first kernel, so the owner's own start counts against it."""
    pattern = r"owner's wake to the end of its first kernel beside (?P<what>.*), p99"
    texts, missed = [], False
    for match, row in rows.find(("reclaim",), pattern, "an owner's wake"):
        length = re.search(r"([\d.]+) (us|ms|s)\b", match["what"])
        if length is None or "gpushare" not in row["values"]:
            continue
        limit = IN_FLIGHT_MS + float(length[1]) * _MS[length[2]] + SPARE_MS
        missed = missed or row["values"]["gpushare"] > limit
        texts.append(f"{match['what']} {number(row['values']['gpushare'])} ms of {number(round(limit, 2))}")
    if not texts:
        raise MissingRowError("an owner's wake under gpushare", ("reclaim",))
    return MISSED if missed else MET, "p99 beside " + ", ".join(texts)


def clients(rows: Rows) -> tuple[str, str]:
    row = rows.one(("clients",), "clients caught by gpushare", "clients")
    wanted = int(row["unit"].removeprefix("of "))
    return MET if 0 < wanted == row["value"] else MISSED, f"{number(row['value'])} {row['unit']}"


TARGETS = (
    Claim(f"share error over 10 s: <= {SHARE_POINTS:g} points", shares),
    Claim(f"busy time against CUDA events: <= {METERING_PERCENT:g} % off", metering),
    Claim(f"launch overhead: <= {LAUNCH_PERCENT:g} %", launches),
    Claim(f"steps of PyTorch: <= {LAUNCH_PERCENT:g} % fewer", steps),
    Claim(f"reclaim, p99: <= {IN_FLIGHT_MS:g} ms in flight + kernel + {SPARE_MS:g} ms", reclaim),
    Claim("every kind of client caught: same result, limit held", clients),
)
