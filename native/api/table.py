"""Reads the committed API tables. Used by the generators at build time and by tests."""

from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Symbol:
    """One exported driver function. `version` is the CUDA version cuGetProcAddress knows it by, 0 where it has none."""

    name: str
    base: str
    version: int
    variant: str  # "", "ptds" or "ptsz"
    parameters: str


def driver() -> list[Symbol]:
    found = []
    for line in (HERE / "driver.tsv").read_text().splitlines():
        if not line.startswith("#"):
            name, base, version, variant, parameters = line.split("\t")
            found.append(Symbol(name, base, int(version), variant, parameters))
    return found


def nvml() -> list[str]:
    """Exported NVML function names."""
    return [line for line in (HERE / "nvml.txt").read_text().splitlines() if line and not line.startswith("#")]
