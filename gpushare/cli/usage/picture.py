"""gpushare usage --format svg: a chart of what tenants used and waited over time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from gpushare.charts import FILLS, Canvas, Column, Frame, plain, shortened, stacked
from gpushare.cli.usage.replay import hours

_HOUR_NS = 3600 * 10**9
_WIDTHS = (("hour", 1), ("6 hours", 6), ("day", 24), ("week", 7 * 24))
_COLUMNS_MAX = 120
_NAMED = FILLS - 1
_GREY = FILLS - 1
_LABELS = 9
_USED = Frame(64, 76, 500, 230)
_WAITED = Frame(64, 376, 500, 90)
_HEIGHT = 490
_LEGEND, _USED_AT, _WAITED_AT = 590, 838, 904
_MONDAY_NS = 4 * 24 * _HOUR_NS
"""The first Monday of 1970, from which weeks are counted."""


@dataclass(slots=True)
class _Bin:
    """Sums over all devices for one column of the chart, in ns."""

    used: dict[str, int] = field(default_factory=dict)
    waited: dict[str, int] = field(default_factory=dict)
    capacity: int = 0

    def count(self, slot: Any) -> None:
        for mine, theirs in ((self.used, slot["used_ns"]), (self.waited, slot["waited_ns"])):
            for tenant, ns in theirs.items():
                mine[tenant] = mine.get(tenant, 0) + ns
        self.capacity += slot["capacity_ns"]


@dataclass(frozen=True, slots=True)
class _Times:
    """The chart's columns. `length`: of each, in hours; `called`: its name; `first`: when the first begins, in ns."""

    called: str
    length: int
    first: int
    count: int

    @classmethod
    def of(cls, since: int, until: int, slots: Sequence[Any]) -> "_Times":
        """Chooses the shortest columns that fit the chart and are not shorter than the recorded slots, which are days
        in the distant past. Spans the recorded slots only: most of a long request may precede the ledger."""
        begins = max(since, slots[0]["begins_ns"]) if slots else since
        ends = min(until, max((slot["begins_ns"] + max(slot["length_ns"], 1) for slot in slots), default=until))
        known = max((slot["length_ns"] for slot in slots), default=0)
        for called, length in _WIDTHS:
            ns = length * _HOUR_NS
            first = (begins - _MONDAY_NS) // ns * ns + _MONDAY_NS
            count = max(1, -(-(ends - first) // ns))
            if (count <= _COLUMNS_MAX and known <= ns) or (called, length) == _WIDTHS[-1]:
                return cls(called, length, first, count)
        raise AssertionError

    def place(self, ns: int) -> int:
        """Returns the column of a moment. A slot that begins before the span, as a day may, is in the first column."""
        return min(max(0, (ns - self.first) // (self.length * _HOUR_NS)), self.count - 1)

    def name(self, place: int) -> str:
        """Returns the start of a column as text."""
        when = datetime.fromtimestamp(self.first // 10**9 + place * self.length * 3600, UTC)
        return when.strftime("%Y-%m-%d %H:%M" if self.length < 24 else "%Y-%m-%d")

    def labels(self) -> list[tuple[int, str]]:
        """Returns some columns, each with a short label: for columns of hours, starts of days if there are some."""
        days = self.length < 24 and self.count * self.length > 48
        places = [p for p in range(self.count) if not days or self.name(p).endswith("00:00")]
        every = -(-len(places) // _LABELS)
        return [(p, self.name(p)[5:10] if days or self.length >= 24 else self.name(p)[11:]) for p in places[::every]]


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of the legend. `members`: tenants, empty for idle time; `fill`: None for idle time."""

    name: str
    fill: int | None
    members: tuple[str, ...]
    used: int
    waited: int


def _lines(bins: Sequence[_Bin], mine: str | None) -> list[_Line]:
    """Returns the lines of the legend, largest use first; tenants beyond the number of fills are combined."""
    used, waited = (_sums(getattr(one, name) for one in bins) for name in ("used", "waited"))
    everybody = {*used, *waited}
    shown = [one for one in everybody if mine is None or one == mine or one.startswith(f"{mine}/")]
    shown.sort(key=lambda one: (-used.get(one, 0), -waited.get(one, 0), one))
    named = shown[:_NAMED] if len(shown) > _NAMED else shown
    rest = tuple(sorted(everybody.difference(named)))
    found = [_Line(one, i, (one,), used.get(one, 0), waited.get(one, 0)) for i, one in enumerate(named)]
    if rest:
        together = (sum(sums.get(one, 0) for one in rest) for sums in (used, waited))
        found.append(_Line(f"{len(rest)} other{'s' * (len(rest) > 1)}", _GREY, rest, *together))
    return found


def _sums(parts: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in parts:
        for name, ns in part.items():
            found[name] = found.get(name, 0) + ns
    return found


def picture(found: Any, tenant: str | None, simulated: bool) -> str:
    """Returns a UsageSlots as SVG. `tenant`: only it and those below it get their own fills; the rest are combined."""
    slots = found["slots"]
    times = _Times.of(found["since_ns"], found["until_ns"], slots)
    bins: dict[int, _Bin] = {}
    for slot in slots:
        bins.setdefault(times.place(slot["begins_ns"]), _Bin()).count(slot)
    lines = _lines(list(bins.values()), tenant)
    capacity = sum(one.capacity for one in bins.values())
    idle = max(0, capacity - sum(line.used for line in lines))
    span = f"{_moment(found['since_ns'])} to {_moment(found['until_ns'])} UTC"
    devices = "simulated devices" if simulated else "devices"
    canvas = Canvas(f"What tenants used of the {devices}, {span}", _summary(lines, idle, capacity))
    canvas.text(16, 26, f"What tenants used of the {devices}", "ink h")
    canvas.text(16, 46, f"{span}; time of one device, by {times.called}", "dim")
    _charts(canvas, times, bins, lines)
    _legend(canvas, lines, idle)
    return canvas.svg(_HEIGHT)


def _moment(ns: int) -> str:
    return datetime.fromtimestamp(ns // 10**9, UTC).strftime("%Y-%m-%d %H:%M")


def _summary(lines: Sequence[_Line], idle: int, capacity: int) -> str:
    if not capacity:
        return "Nothing was recorded."
    parts = [f"{plain(line.name)} used {hours(line.used)} and waited {hours(line.waited)}" for line in lines]
    return "; ".join([*parts, f"idle or switching {hours(idle)} of {hours(capacity)}"]) + "."


def _charts(canvas: Canvas, times: _Times, bins: Mapping[int, _Bin], lines: Sequence[_Line]) -> None:
    if not bins:
        canvas.text(_USED.left + _USED.width / 2, _USED.top + _USED.height / 2, "nothing was recorded", "dim", "middle")
        return
    used, waited = [], []
    ns, unit = _unit(max(max(one.capacity, sum(one.used.values())) for one in bins.values()))
    long_ns, long_unit = _unit(max(sum(one.waited.values()) for one in bins.values()))
    for place, one in sorted(bins.items()):
        rest = max(0, one.capacity - sum(one.used.values()))
        idle = (rest / ns, f"{times.name(place)}: {hours(rest)} idle or switching")
        used.append(Column(place, _parts(times.name(place), one.used, lines, "used", ns), idle))
        waited.append(Column(place, _parts(times.name(place), one.waited, lines, "waited", long_ns)))
    stacked(canvas, _USED, times.count, used, unit)
    canvas.text(16, _WAITED.top - 16, "Waited for a device: two grants that wait for an hour are two hours", "ink b")
    if any(column.whole for column in waited):
        stacked(canvas, _WAITED, times.count, waited, long_unit)
    else:
        canvas.text(_WAITED.left, _WAITED.top + 8, "nobody waited", "dim")
    step = _USED.width / times.count
    for place, name in times.labels():
        canvas.text(_USED.left + (place + 0.5) * step, _USED.bottom + 16, name, "dim n", "middle")


def _unit(most: int) -> tuple[int, str]:
    """Returns the unit in which to show `most` ns: its length in ns, and its name."""
    if most >= _HOUR_NS:
        return _HOUR_NS, " h"
    return (60 * 10**9, " min") if most >= 60 * 10**9 else (10**9, " s")


def _parts(
    when: str, sums: Mapping[str, int], lines: Sequence[_Line], did: str, unit: int
) -> list[tuple[float, int, str]]:
    found = []
    for line in lines:
        ns = sum(sums.get(one, 0) for one in line.members)
        if line.fill is not None:
            found.append((ns / unit, line.fill, f"{when}: {line.name} {did} {hours(ns)}"))
    return found


def _legend(canvas: Canvas, lines: Sequence[_Line], idle: int) -> None:
    """Draws the legend, in the order of the stacked columns from the top."""
    y = _USED.top + 12
    canvas.text(_USED_AT, y, "used", "dim", "end")
    canvas.text(_WAITED_AT, y, "waited", "dim", "end")
    for line in [_Line("idle, switching", None, (), idle, 0), *reversed(lines)]:
        y += 24
        canvas.box(_LEGEND, y - 11, 14, 14, line.fill)
        canvas.text(_LEGEND + 22, y, shortened(line.name, _USED_AT - _LEGEND - 82), "ink", hint=line.name)
        canvas.text(_USED_AT, y, hours(line.used), "ink n", "end")
        canvas.text(_WAITED_AT, y, hours(line.waited) if line.members else "", "ink n", "end")
