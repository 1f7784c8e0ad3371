"""What the configuration says of remote grants."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Settings:
    """`listen`: ADDRESS:PORT of the relay, empty: there are no remote grants. `host`: what clients are told of it.
    `carriers`: another directory of contracts. `host_memory`: bytes that a carrier's server may use of the node's
    memory. `attachments`: how many may live at once."""

    listen: str
    host: str
    carriers: Path | None
    host_memory: int
    attachments: int
