"""How much the relay holds at most, and for how long it waits."""

from dataclasses import dataclass

from gpushare.relay import wire

ATTACHMENTS_MAX = 128
"""Living ones."""
ENDED_MAX = 1024
"""Attachments that have ended and that no daemon has noted: of more the oldest are forgotten."""
DATA_MAX = 64
"""Connections of one attachment for data, with those that wait for the server."""
CHECKS_MAX = 4
"""Connections of one attachment for link checks."""

STRANGERS_MAX = 384
"""Connections that have not shown a ticket yet. Of more the oldest goes of those from the address with the most."""
STRANGERS_OF_ONE_MAX = 128
"""Those from one address (IPv6: from one /64)."""
STRANGER_BYTES_MAX = 16 << 10
"""What one may send before its ticket has come, with the TLS handshake."""

ADDRESS_SPACE = 1 << 30
DESCRIPTORS = 2 * ATTACHMENTS_MAX * (DATA_MAX + CHECKS_MAX) + STRANGERS_MAX + 256


@dataclass(frozen=True, slots=True)
class Times:
    """In seconds. Tests have shorter ones. `idle`: until a relay without attachments and daemon ends; `unnoted`: also
    one whose attachments have ended and were not noted; `parting`: for the last line of an attachment to be read."""

    beat: float = wire.BEAT_SECONDS
    silent: float = wire.SILENT_SECONDS
    first_use: float = wire.FIRST_USE_SECONDS
    preamble: float = wire.PREAMBLE_SECONDS
    idle: float = 60.0
    unnoted: float = 3600.0
    parting: float = 2.0
