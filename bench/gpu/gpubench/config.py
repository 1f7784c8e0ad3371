"""What one run was asked for, handed from the command to the process of each part."""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Peer:
    """Another preload library and its environment. In the values, {memory_bytes}, {memory_mib} and {percent} become
    the share asked for."""

    name: str
    library: str
    environment: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> "Peer":
        """NAME=PATH[,KEY=VALUE...]. Raises ValueError."""
        first, *rest = text.split(",")
        name, equals, library = first.partition("=")
        if not name or not equals or not Path(library).is_file() or name in ("bare", "gpushare"):
            raise ValueError(f"--peer {text!r}: write NAME=PATH,KEY=VALUE... with the path of a library")
        pairs = [pair.partition("=") for pair in rest]
        if any(not key or not sign for key, sign, _ in pairs):
            raise ValueError(f"--peer {text!r}: behind the path come KEY=VALUE pairs")
        return cls(name, str(Path(library).resolve()), {key: value for key, _, value in pairs})


class MissingError(Exception):
    """Something that this machine does not have, or that could not be built here: no measurement, no failure."""


@dataclass(frozen=True)
class Config:
    """`work`: scratch directory with a short name (sockets lie below it). `lib`: gpushare's _lib directory."""

    simulated: bool
    work: str
    programs: str
    lib: str
    peers: list[Peer] = field(default_factory=list)
    not_built: dict[str, str] = field(default_factory=dict)
    """Programs, and why."""
    gpu: int = 0
    """Which device, in the order of the bus."""
    without: str = ""
    """Why there is no gpushare to measure: it could not be built."""

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> "Config":
        found = json.loads(path.read_text())
        return cls(**{**found, "peers": [Peer(**peer) for peer in found["peers"]]})


def clean_environment() -> dict[str, str]:
    """This process's, without what would make a bare program anything but bare."""
    dropped = ("GPUSHARE_", "LD_PRELOAD", "CUDA_VISIBLE_DEVICES", "CUDA_INJECTION", "CUDA_MPS_")
    return {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
