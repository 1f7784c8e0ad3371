"""Reads the committed API tables. Used by the generators at build time and by tests."""

import re
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Symbol:
    """One exported driver function. `version`: its CUDA version in cuGetProcAddress; 0: it cannot be looked up."""

    name: str
    base: str
    version: int
    variant: str  # "", "ptds" or "ptsz"
    parameters: str


@dataclass(frozen=True, slots=True)
class RuntimeFunction:
    """One function of the CUDA runtime.

    `majors` are the major versions that have it with these parameters, `variant` its per-thread twin ("", "ptds" or
    "ptsz"). `parameters` is "-" if they are unknown. `does` is one of
      hand      written in native/sim/cudart
      none      not simulated: cudaErrorNotSupported
      cuSYMBOL  forwarded to this driver symbol with the same arguments, in a context
      cuSYMBOL(ARGUMENT, ...)  forwarded with these: a parameter's name, a number, or the current `context` or `device`
    A leading `start ` means that the call needs the driver but no context. A host function passed as `func` is looked
    up where the driver takes a kernel or function.
    """

    name: str
    majors: tuple[int, ...]
    variant: str
    does: str
    parameters: str


def driver() -> list[Symbol]:
    found = []
    for line in (HERE / "driver.tsv").read_text().splitlines():
        if not line.startswith("#"):
            name, base, version, variant, parameters = line.split("\t")
            found.append(Symbol(name, base, int(version), variant, parameters))
    return found


def graphics() -> list[Symbol]:
    """Exported driver functions that cuda.h does not declare; their parameters are not in the table."""
    found = []
    for line in (HERE / "graphics.tsv").read_text().splitlines():
        if not line.startswith("#"):
            name, base, version, variant = line.split("\t")
            found.append(Symbol(name, base, int(version), variant.strip("-"), ""))
    return found


def runtime() -> list[RuntimeFunction]:
    found = []
    for line in (HERE / "runtime.tsv").read_text().splitlines():
        if not line.startswith("#"):
            name, majors, variant, does, parameters = line.split("\t")
            found.append(RuntimeFunction(name, tuple(map(int, majors.split(","))), variant, does, parameters))
    return found


def runtime_versions() -> dict[int, int]:
    """The runtime's version (1000 * major + 10 * minor) by its major version, as of the headers used."""
    lines = (HERE / "runtime.tsv").read_text().splitlines()
    numbers = [int(line.split()[2]) for line in lines if line.startswith("# version ")]
    return {number // 1000: number for number in numbers}


def runtime_errors() -> list[tuple[int, str, str]]:
    """Number, name and description of each error of the runtime."""
    found = []
    for line in (HERE / "runtime_errors.tsv").read_text().splitlines():
        if not line.startswith("#"):
            number, name, text = line.split("\t")
            words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name.removeprefix("cudaError"))
            found.append((int(number), name, words.lower() if text == "-" else text))
    return found


def nvml() -> list[str]:
    """Exported NVML function names."""
    return [line for line in (HERE / "nvml.txt").read_text().splitlines() if line and not line.startswith("#")]
