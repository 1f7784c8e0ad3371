"""Lasting findings of the daemon's audit."""

from collections.abc import Iterator

from gpushare.client import Client
from gpushare.doctor.finding import Check, Finding
from gpushare.errors import GpushareError
from gpushare.text.units import format_size

OUTSIDE = Check(
    "audit",
    "note",
    "{what} and is in no grant: {act}",
    "end it, or start it in a grant",
    "It takes memory and time that are promised to others, and nothing limits it.",
)
UNOWNED = Check(
    "audit",
    "note",
    "{size} of device {device} are in use and no process has them",
    "end the processes that imported memory there (`gpushare top` shows who uses the device)",
    "A process shared memory with another one and has ended. The driver keeps that memory as long as the other process "
    "has it, and nobody is charged for it.",
)
EVADER = Check(
    "grant {grant}",
    "wrong",
    "{what} {how}: {act}",
    "look at it, then `gpushare grant release {grant}`, which ends it",
    "The driver lists a process of this grant that bypasses its share. If `[audit]` in gpushare.toml says so, the "
    "grant is frozen until that process has ended, or as often as it takes to keep the grant to its share.",
)

_SHOWN_MAX = 16
_HOW = {
    "evader": "and has not joined",
    "excess": "with others of its grant, by more than they may",
    "kept-memory": "with others of its grant, by more than they have left there",
    "overuse": "with others of its grant, for longer than they are charged",
}


def lasting(client: Client) -> Iterator[Finding]:
    """Yields the latest lasting findings, at most _SHOWN_MAX."""
    try:
        answer = client.call("GET", "/v1/findings")
    except GpushareError:
        return
    found = [one for one in answer["findings"] if not one["outcome"]]
    for one in found[-_SHOWN_MAX:]:
        what = f"process {one['pid']} ({one['command'] or 'command line not known'}) uses device {one['device']}"
        if one["kind"] == "unowned":
            yield UNOWNED(size=format_size(one["memory_bytes"]), device=one["device"])
        elif one["grant"] is None:
            yield OUTSIDE(what=what, act=one["act"])
        else:
            yield EVADER(grant=one["grant"], what=what, how=_HOW[one["kind"]], act=one["act"])
