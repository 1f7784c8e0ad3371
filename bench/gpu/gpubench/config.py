"""What one run was asked for, handed from the command to the process of each group."""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path


class MissingError(Exception):
    """Something that this machine does not have, or that could not be built on it: no measurement, no failure."""


@dataclass(frozen=True)
class Config:
    """`work`: scratch directory with a short name, since sockets lie below it. `not_built`: programs, and why. `gpu`:
    which device, in the order of the bus. `scale`: of the usual seconds and repeats, how many."""

    simulated: bool
    work: str
    programs: str
    not_built: dict[str, str] = field(default_factory=dict)
    gpu: int = 0
    scale: float = 1.0

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> "Config":
        return cls(**json.loads(path.read_text()))


def clean_environment() -> dict[str, str]:
    """This process's, without what would make a bare program anything but bare."""
    dropped = ("GPUSHARE_", "LD_PRELOAD", "CUDA_VISIBLE_DEVICES", "CUDA_INJECTION", "CUDA_MPS_")
    return {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
