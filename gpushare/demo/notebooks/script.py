"""The scenario's script, as data: the device, the programs on it, and who wakes when."""

from dataclasses import dataclass

from gpushare.demo.notebooks.program import PIECE

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """A program of the scenario. `share`: percent of the device's memory. `time`: milli of its time. `borrows`: all of
    its memory is on loan."""

    name: str
    share: int
    time: int
    class_: str = "interactive"
    borrows: bool = False


ADA, BEN = Part("ada", 49, 200), Part("ben", 49, 200)
"""Both owners fit on the device together, beside the contexts of the others, which never leave it."""
EVA = Part("eva", 52, 200, borrows=True)
TRAINER = Part("trainer", 40, 0, "training", borrows=True)
NOTEBOOKS = (ADA, BEN, EVA)
PARTS = (*NOTEBOOKS, TRAINER)


@dataclass(frozen=True, slots=True)
class Device:
    """The simulated device. `context`: bytes that stay there of each program. `link`: bytes per second, so few that the
    model decides how long a copy takes, and not this machine's memory. `idle_after`: seconds without work after which
    memory is lent. `filled`: percent of each program's memory that is variables."""

    size: int = 1024 * MIB
    context: int = 4 * MIB
    link: int = 10**9
    idle_after: float = 0.5
    filled: int = 75

    def memory(self, part: Part) -> int:
        """Returns what the program asks for, in bytes."""
        return self.size * part.share // 100

    def variables(self, part: Part) -> int:
        """Returns how many bytes of variables it has, in whole pieces."""
        return self.memory(part) * self.filled // 100 // PIECE * PIECE

    @property
    def model(self) -> dict[str, str]:
        """The simulator's settings, as in the daemon's environment."""
        return {
            "GPUSHARE_SIM_CONTEXT_MIB": str(self.context // MIB),
            "GPUSHARE_SIM_COPY_GBPS": f"{self.link / 10**9:g}",
        }


MORNING = ((ADA,), (BEN,))
"""Who wakes together, one after the other, before the trainer comes."""
ONE_BY_ONE = ((ADA,), (BEN,), (EVA,))
"""Beside the trainer: each has room there."""
TOGETHER = ((ADA, BEN),)
"""Both owners: then the trainer has none."""
