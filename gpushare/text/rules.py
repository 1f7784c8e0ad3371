"""Texts for the rules by which leases are given and revoked; enum gs_rule in gs_arbiter.h explains each. Imports
nothing, since the command line needs them at each start."""

LEASE = {
    "idle": "it had nothing to run",
    "sleeping": "it sleeps after its work",
    "gone": "no process of it is left",
    "unused": "it was not taken up",
    "limit": "time limit",
    "wake": "a grant with guaranteed time woke",
    "guarantee": "guaranteed time taken back",
    "tier": "a higher tier borrows first",
    "term": "end of the term",
    "excess": "beside others it had more than its guarantee",
    "gang": "all devices of a job at one instant",
    "ended": "the grant ended",
    "free": "nobody had the device",
    "room": "its holders leave room",
    "away": "its memory leaves the device",
}

OWN_ACCORD = ("idle", "sleeping", "gone", "unused", "ended", "away")
"""Rules by which a grant loses a lease without another grant taking it."""

TAKEN = {
    "limit": "it had reached its time limit",
    "wake": "{other} woke, and its time is guaranteed",
    "guarantee": "{other} was below its guarantee",
    "tier": "{other} is of a higher tier",
    "term": "its turn was over and {other} waited",
    "excess": "beside {other} it had more than its guarantee",
    "gang": "a job needs all its devices at one instant",
}
"""Why a lease was taken; `other`: the grant that took it."""

ENDED = ("released", "expired", "failed")
"""Phases of grants that have ended."""

EVENT_KINDS = ("lease", "revoke", "handover", "wake", "late", "beside", "drained", "left", "lie", "refused")
"""Kinds of receipts that can be asked for."""

EVICTION_SIGNALS = ("HUP", "INT", "QUIT", "USR1", "USR2", "TERM")
"""Signals that may be sent to a grant that is asked for memory."""
