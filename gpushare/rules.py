"""The rules by which leases are taken and given, in words. Imports nothing: the command line needs them at once."""

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
}
