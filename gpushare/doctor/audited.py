"""What the daemon's audit has found, and lasts."""

from collections.abc import Iterator

from gpushare.client import Client
from gpushare.doctor.finding import Check, Finding
from gpushare.errors import GpushareError
from gpushare.units import format_size

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
    "A process shared memory with another and ended. The driver keeps it as long as the other has it, and nobody is "
    "charged for it.",
)
EVADER = Check(
    "grant {grant}",
    "wrong",
    "{what} {how}: {act}",
    "look at it, then `gpushare grant release {grant}`, which ends it",
    "The driver lists a process of this grant that goes round its share. The grant is frozen until that process has "
    "ended, or as often as it takes to keep it to its share, where `[audit]` of gpushare.toml says so.",
)

_SHOWN_MAX = 16
_HOW = {
    "evader": "and has not joined",
    "excess": "with others of its grant, by more than they may",
    "overuse": "with others of its grant, for longer than they are charged",
}


def lasting(client: Client) -> Iterator[Finding]:
    """One for each process that uses a device without a share, the latest of them."""
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
