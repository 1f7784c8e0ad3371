"""Wire types of where a grant's movable memory is, and of the calls that move it."""

from typing import Literal

from msgspec import Struct

Where = Literal["resident", "suspending", "suspended", "resuming"]


class Residency(Struct, kw_only=True):
    """`where`: on its device, in host memory, or on its way there or back. `hold`: it stays away until somebody resumes
    it, whatever its programs call. `wanted`: it is to come back; `waits`: what for, in words. `since_ns`: wall
    time at which it came to be there; 0: it always was. `why`: why it did not leave when that was last asked for;
    empty: it did. `said_idle`: its programs have said that they are idle, and not since that they are back. `receipt`:
    of its last move, in words: who had its room, or how memory that it had on loan was taken back; empty: neither."""

    where: Where
    hold: bool = False
    wanted: bool = False
    waits: str = ""
    why: str = ""
    since_ns: int = 0
    said_idle: bool = False
    receipt: str = ""


class SuspendRequest(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """`hold`: the grant's memory stays away until somebody resumes the grant; otherwise until one of its programs calls
    something that needs the memory."""

    hold: bool = False
