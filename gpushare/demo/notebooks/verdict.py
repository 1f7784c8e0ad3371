"""What was measured, and the claims: a pure function of that."""

from collections.abc import Collection
from dataclasses import dataclass, field
from statistics import median

from gpushare.demo.notebooks.script import TRAINER
from gpushare.demo.verdict import Claim
from gpushare.text.units import format_size, format_time

COPIES = 3
"""A wake takes at most so many times what its copies take by the model of the link: others may have to be copied out
first, and a busy machine takes its time, too."""
BESIDE_MILLI = 800
"""Of the steps that it would have had alone, what the trainer has beside one notebook at a time."""


@dataclass(frozen=True, slots=True)
class Wake:
    """A cell of a notebook that had rested. `away`: its variables were not on the device, by the simulator's books.
    `at_once`: how many woke together. `wait_ms`: until its first kernel had run, by its own clock."""

    name: str
    away: bool
    at_once: int
    wait_ms: float


@dataclass(frozen=True, slots=True)
class Check:
    """A program's comparison of its variables with what they should be. `wrong`: how many are not."""

    name: str
    wrong: int
    variables: int
    bytes: int


@dataclass
class Facts:
    """The measurements. `peak_bytes`, `away` (programs whose variables left the device), `moved_*_bytes`,
    `illegal_accesses`, `pace` (milli of the device that the trainer had: phase -> milli) and `returned` (the trainer's
    variables were back in the end): by the simulator's books. `checks`, `wakes` and `steps`: by the programs."""

    capacity_bytes: int
    link_bytes_per_s: int
    variables: dict[str, int]
    checks: list[Check] = field(default_factory=list)
    wakes: list[Wake] = field(default_factory=list)
    steps: int = 0
    peak_bytes: int = 0
    away: set[str] = field(default_factory=set)
    moved_out_bytes: int = 0
    moved_in_bytes: int = 0
    illegal_accesses: int = 0
    pace: dict[str, int] = field(default_factory=dict)
    returned: bool = False
    killed: tuple[str, ...] = ()

    @property
    def waits_ms(self) -> list[float]:
        """Of the notebooks whose variables had to come back."""
        return [wake.wait_ms for wake in self.wakes if wake.away]

    def copy_ms(self, name: str) -> float:
        """The modelled time of a copy of a program's variables."""
        return 1000 * self.variables[name] / self.link_bytes_per_s

    def copies_ms(self, wake: Wake) -> float:
        """The modelled time of the copies that a wake waits for, if who is idle has a copy already."""
        alone = self.copy_ms(wake.name)
        return alone if wake.at_once == 1 else wake.at_once * alone + self.copy_ms(TRAINER.name)


def claims(facts: Facts) -> list[Claim]:
    """Evaluates all claims, in the order of the demo."""
    return [
        _variables(facts),
        Claim("nobody was killed", not facts.killed, ", ".join(facts.killed) or "0"),
        _memory(facts),
        _moved(facts),
        *_waits(facts),
        *_trainer(facts),
    ]


def _variables(facts: Facts) -> Claim:
    wrong = sum(check.wrong for check in facts.checks)
    compared = format_size(sum(check.bytes for check in facts.checks))
    unchecked = facts.variables.keys() - {check.name for check in facts.checks}
    measured = f"{compared} compared, {wrong} wrong"
    if unchecked:
        measured += f", nothing of {_names(unchecked)}"
    if facts.illegal_accesses:
        measured += f", {facts.illegal_accesses} illegal accesses"
    return Claim(
        "every variable is what its program made it", not (wrong or unchecked or facts.illegal_accesses), measured
    )


def _memory(facts: Facts) -> Claim:
    """Without more variables than the device holds, it would show nothing."""
    held = sum(facts.variables.values())
    return Claim(
        f"variables of {format_size(held)} share a device of {format_size(facts.capacity_bytes)}",
        0 < facts.peak_bytes <= facts.capacity_bytes < held,
        f"at most {format_size(facts.peak_bytes)} of it in use",
    )


def _moved(facts: Facts) -> Claim:
    stayed = facts.variables.keys() - facts.away
    measured = f"{format_size(facts.moved_out_bytes)} out, {format_size(facts.moved_in_bytes)} in"
    if stayed:
        measured += f", never those of {_names(stayed)}"
    return Claim("everybody's variables left the device and came back", not stayed, measured)


def _waits(facts: Facts) -> list[Claim]:
    """Usually a notebook's own variables come back, and nothing else is copied. At worst the trainer's leave first, and
    those of all who woke come back over the same link."""
    waits, copies = facts.waits_ms, [facts.copies_ms(wake) for wake in facts.wakes]
    if not waits:
        return [Claim("notebooks have to wait for their variables", False, "nobody waited")]
    found = []
    for who, value, copy, name in (
        ("half of the wakes take", median(waits), min(copies), "the copy's"),
        ("all wakes take", max(waits), max(copies), "the three copies'"),
    ):
        claim = f"{who} at most {COPIES} times {name} {copy:.0f} ms"
        found.append(Claim(claim, value <= COPIES * copy, f"{value:.0f} ms"))
    return found


def _trainer(facts: Facts) -> list[Claim]:
    alone, beside, after = (facts.pace.get(phase, 0) for phase in ("alone", "one", "after"))
    part = round(1000 * beside / alone) if alone else 0
    return [
        Claim(
            f"beside one notebook at a time the trainer makes {format_time(BESIDE_MILLI)} of its steps alone",
            part >= BESIDE_MILLI,
            format_time(part),
        ),
        Claim(
            "it makes room for two at once, is back, and goes on",
            facts.returned and TRAINER.name in facts.away and after > 0 and facts.steps > 0,
            f"{facts.steps} steps in all" if facts.returned else "its variables stayed away",
        ),
    ]


def _names(names: Collection[str]) -> str:
    return ", ".join(sorted(names))
