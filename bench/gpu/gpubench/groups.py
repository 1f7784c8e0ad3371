"""What is measured: groups, each with its own process and time limit."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Group:
    """`function` is MODULE:FUNCTION. `real`: it cannot run on the simulated device. `shares`: it shows nothing where
    gpushare cannot run. `seconds`: its limit; with the build before it, a group stays under 9 minutes."""

    name: str
    title: str
    function: str
    seconds: int
    real: bool = False
    shares: bool = True


PREFLIGHT = Group("preflight", "Whether gpushare can share here", "gpubench.parts.preflight:measure", 120, shares=False)
"""Runs before the first group that shares; where it fails, none of them runs."""

GROUPS = (
    Group("metering", "Metering", "gpubench.parts.metering:measure", 240),
    Group("overhead", "Overhead of launches", "gpubench.parts.overhead:launches", 300),
    Group("memory", "Memory", "gpubench.parts.memory:measure", 290),
    Group("clients", "Clients caught", "gpubench.parts.clients:measure", 480),
    Group("evaders", "Past the interposer", "gpubench.parts.evaders:measure", 240),
    Group("shares", "Policy: shares", "gpubench.parts.shares:measure", 500),
    Group("reclaim", "Policy: reclaim", "gpubench.parts.reclaim:measure", 220),
    Group("residency", "Memory that moves", "gpubench.parts.residency:measure", 420),
    Group("protection", "Policy: latency next to training", "gpubench.parts.protection:measure", 420),
    Group("pairs", "Policy: pairs of programs", "gpubench.parts.pairs:measure", 480),
    Group("frameworks", "Overhead of PyTorch steps", "gpubench.parts.overhead:frameworks", 500, real=True),
    Group(
        "hidden", "The driver: memory in use without an allocation", "gpubench.parts.hidden:measure", 420, shares=False
    ),
    Group("stalls", "The driver: what waits for what", "gpubench.parts.stalls:measure", 300, shares=False),
)


def select(names: list[str]) -> list[Group]:
    """All where none is named, with the preflight where one of them shares. Raises KeyError with an unknown name."""
    known = {group.name: group for group in (PREFLIGHT, *GROUPS)}
    chosen = [known[name] for name in dict.fromkeys(names)] or list(GROUPS)
    if any(group.shares for group in chosen):
        chosen = [PREFLIGHT, *(group for group in chosen if group is not PREFLIGHT)]
    return chosen
