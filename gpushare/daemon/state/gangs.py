"""Gangs: grants of several devices, and of jobs that have more devices elsewhere. How their leases are given."""

from typing import get_args

import msgspec

from gpushare.api.types import Gang, GrantRequest, Leases
from gpushare.binding.arbiter import ShareFlags
from gpushare.errors import UsageError

_ID_MAX = 128
_SIZE_MAX = 1 << 20


def _from_text(text: str) -> Gang:
    if not text:
        raise UsageError("the gang is empty: write ID[:SIZE[:LEASES]], as job-7:4, or leave it out")
    name, _, rest = text.partition(":")
    size, _, leases = rest.partition(":")
    if size and not (size.isascii() and size.isdecimal() and len(size) < 8):
        raise UsageError(f"gang {text[:80]!r} has no number as its size: write ID[:SIZE[:LEASES]], as job-7:4")
    if leases and leases not in get_args(Leases):
        raise UsageError(f"leases {leases[:40]!r} are unknown: write {' or '.join(get_args(Leases))}")
    return msgspec.convert(
        {"id": name or None, "size": int(size) if size else None, "leases": leases or "together"}, Gang
    )


def gang_of(request: GrantRequest) -> Gang | None:
    """The request's gang, checked and with its size filled in; None where it names none. Raises UsageError."""
    if request.gang is None:
        return None
    asked = _from_text(request.gang) if isinstance(request.gang, str) else request.gang
    if asked.id is not None and not (1 <= len(asked.id) <= _ID_MAX and asked.id.isprintable()):
        raise UsageError(f"a gang's id has 1 to {_ID_MAX} printable characters, not {len(asked.id)}: shorten it")
    size = request.devices if asked.size is None else asked.size
    if not request.devices <= size <= _SIZE_MAX:
        raise UsageError(
            f"a gang of {size} devices cannot have {request.devices} of them in this grant: give its size in all,"
            f" {request.devices} to {_SIZE_MAX}"
        )
    if size > request.devices and asked.leases == "independent":
        raise UsageError(
            f"leases are independent, but {size - request.devices} of the gang's {size} devices are elsewhere: leave"
            " leases out, or the size"
        )
    return Gang(id=asked.id, size=size, leases=asked.leases)


def share_flags(request: GrantRequest) -> ShareFlags:
    """How the arbiter gives the grant's leases. A gang with devices elsewhere is never stopped for others: its ranks
    here would spin for the ranks there, which this node cannot stop at the same collective."""
    gang = gang_of(request)
    if gang is not None and gang.size is not None and gang.size > request.devices:
        return ShareFlags.BESIDE
    together = request.devices > 1 and (gang is None or gang.leases == "together")
    return ShareFlags.GANG if together else ShareFlags.NONE
