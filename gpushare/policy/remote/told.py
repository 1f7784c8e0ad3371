"""Links and what they cost, as people read it. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from gpushare.policy.remote.predict import Path, Work, cost, slowdown
from gpushare.text.links import rate, round_trip, short
from gpushare.text.units import format_size

_LEAST = 0.0005
"""Less than 0.05 % is told as nothing."""
_MUCH = 10.0
"""From ten times the time on, a factor says more than a percentage."""


def path(link: Path) -> str:
    """`85 us, 9.6 Gbit/s`: with the rate of the worse way."""
    return f"{round_trip(link.rtt_us)}, {rate(min(link.up_bps, link.down_bps))}"


def more(part: float) -> str:
    """A part of a program's time that comes on top: `+1.4 %`, `+13 %`, `12 times as long`."""
    if part >= _MUCH:
        return f"{part + 1:.0f} times as long" if part < 1e6 else "it never ends"
    return f"+{percent(part)}"


def percent(part: float) -> str:
    """`0 %`, `1.4 %`, `13 %`."""
    if part < _LEAST:
        return "0 %"
    return f"{part * 100:.1f} %" if part < 0.0995 else f"{part * 100:.0f} %"


def work(done: Work, seconds: float) -> str:
    """What a program does in a second: `120 synchronising calls/s, 30 MB/s`."""
    calls, moved = done.sync_calls / seconds, (done.bytes_in + done.bytes_out) / seconds
    return f"{short(calls) if calls < 10 else f'{calls:.0f}'} synchronising calls/s, {_moved(moved)}"


def _moved(bytes_s: float) -> str:
    for unit, size in (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3)):
        if bytes_s >= size:
            return f"{short(bytes_s / size)} {unit}"
    return f"{bytes_s:.0f} B/s"


_WORTH_TELLING = 0.02


def reason(done: Work, seconds: float, link: Path) -> str:
    """Why programs that ran over a link for so many seconds are not faster, and what to do; empty: the link costs them
    little."""
    found = cost(done, seconds, link)
    if found.part < _WORTH_TELLING:
        return ""
    bytes_only = cost(done._replace(sync_calls=0), seconds, link)
    much = f"about {percent(found.part)}" if found.part < _MUCH else "many times"
    advice = "let its programs copy less to and from the device"
    if bytes_only.seconds < found.seconds / 2:
        advice = (
            "let its programs wait for the device less often (fewer synchronising calls, larger batches, CUDA graphs)"
        )
    return (
        f"its link makes its programs {much} slower (round trip {round_trip(link.rtt_us)}, {work(done, seconds)}):"
        f" {advice}, or run them on this node (`gpushare run --on NODE`)"
    )


class Node(NamedTuple):
    """A node that a program could use over a link. `path`: None: its link is not known, because of `trouble`."""

    name: str
    path: Path | None
    trouble: str = ""


def predictions(done: Work, seconds: float, nodes: Sequence[Node]) -> list[str]:
    """A line for what the program does, and one for each node, that on which it would run fastest first."""
    known = [(slowdown(done, seconds, node.path), node) for node in nodes if node.path is not None]
    known.sort(key=lambda row: (row[0], row[1].name))
    lines = [work(done, seconds)] if len(nodes) != 1 else []
    head = f"{work(done, seconds)}: " if len(nodes) == 1 else ""
    lines += [f"{head}{more(part)} on {node.name} ({path(node.path)})" for part, node in known if node.path is not None]
    return lines + [f"{head}not known on {node.name}: {node.trouble}" for node in nodes if node.path is None]


def link_cost(done: Work, seconds: float, link: Path) -> str:
    """What the link cost a program that ran over it for so many seconds: `link 85 us, 1.20GiB: cost 3 % (0.4 s)`."""
    found = cost(done, seconds, link)
    size = format_size(round(done.bytes_in + done.bytes_out))
    spent = f"{found.seconds:.1f} s" if found.seconds >= 0.095 else f"{found.seconds * 1000:.0f} ms"
    told = percent(found.part) if found.part < _MUCH else "most of its time"
    return f"link {round_trip(link.rtt_us)}, {size}: cost {told} ({spent})"
