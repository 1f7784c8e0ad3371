"""Attachments and their links as people read them. Takes Attachments of gpushare.api.remote as plain dicts."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from gpushare.text.units import format_size

Json: TypeAlias = Any

CLASSES = ("good", "fair", "poor", "refused")
"""Of links, the best first."""
SLOW = ("poor", "refused")
"""Those that slow many programs down."""
ENDINGS = {
    "detached": "the client ended it",
    "lost": "nothing was heard of the client for too long",
    "expired": "it was not used in time",
    "server": "the carrier's server ended",
    "released": "the grant ended",
    "relay": "the node's relay ended",
}
_KINDS = {"tls": "TLS", "plain": "unencrypted"}


def round_trip(rtt_us: float) -> str:
    """`85 us`, `1.1 ms`."""
    return f"{rtt_us:.0f} us" if rtt_us < 999.5 else f"{short(rtt_us / 1000)} ms"


def rate(bps: float) -> str:
    """Bits per second: `9.6 Gbit/s`, `850 Mbit/s`."""
    for unit, size in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if bps >= size:
            return f"{short(bps / size)} {unit}"
    return f"{bps:.0f} bit/s"


def short(number: float) -> str:
    """Two figures, or all before the point."""
    return f"{number:.0f}" if number >= 9.95 else f"{number:.1f}".removesuffix(".0")


def host(attachment: Json) -> str:
    """The client machine: the name that it gives itself, else its address."""
    return str(attachment["origin"] or attachment["address"] or "?")


def hosts(attachments: Iterable[Json]) -> str:
    """The only client machine, or how many there are; empty where there is none."""
    found = {host(one) for one in attachments}
    return found.pop() if len(found) == 1 else f"{len(found)} hosts" if found else ""


def worst(attachments: Iterable[Json]) -> str:
    """The worst class that one of the links had when it was checked; empty where none was."""
    checked = [one["link"]["checked"] for one in attachments if one["link"]["checked"] in CLASSES]
    return max(checked, key=CLASSES.index, default="")


def brief(attachments: Sequence[Json]) -> str:
    """In one cell, `85us 1.2G`: the longest round trip, what goes over all links together in bits per second, and the
    worst class if that is one of SLOW. Without what is not known, or is nothing."""
    rtt_us = max((one["link"]["rtt_us"] for one in attachments), default=0)
    bps = sum(one["link"]["rate_bps"] for one in attachments)
    parts = [round_trip(rtt_us).replace(" ", "")] if rtt_us else []
    parts += [rate(bps).partition("bit")[0].replace(" ", "")] if bps >= 1000 else []
    parts += [found] if (found := worst(attachments)) in SLOW else []
    return " ".join(parts)


def origin(attachment: Json) -> str:
    """`lab2 (10.0.0.3)`."""
    name, address = host(attachment), attachment["address"]
    return name if address in ("", name) else f"{name} ({address})"


def attached(attachment: Json) -> str:
    """That it began, as an event."""
    return f"attached from {origin(attachment)}, {_over(attachment)}"


def detached(attachment: Json) -> str:
    """That it ended, as an event."""
    from gpushare.text import amounts  # here: it takes 4 ms to import

    ns = max(0, attachment["ended_ns"] - attachment["created_ns"])
    ending = attachment["ending"]
    why = ENDINGS.get(ending, ending)
    return f"detached from {host(attachment)} after {amounts.unit([ns]).text(ns)}, {why}: {_moved(attachment)}"


def living(attachment: Json) -> str:
    """What an attachment is, and how its link does."""
    checked = attachment["link"]["checked"]
    found = [_link(attachment), *([f"{checked} when it was checked"] if checked else []), _moved(attachment)]
    return f"from {origin(attachment)}, {_over(attachment)}: {', '.join(filter(None, found))}"


def _over(attachment: Json) -> str:
    kind = attachment["link"]["kind"]
    return f"over {attachment['carrier']}, {_KINDS.get(kind, kind)}"


def _link(attachment: Json) -> str:
    link = attachment["link"]
    if not link["rtt_us"]:
        return ""
    using = f", {rate(link['rate_bps'])} now" if link["rate_bps"] else ""
    return f"round trip {round_trip(link['rtt_us'])}{using}"


def _moved(attachment: Json) -> str:
    return f"{format_size(attachment['bytes_in'])} in, {format_size(attachment['bytes_out'])} out"
