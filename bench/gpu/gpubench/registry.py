"""The parts: what each measures, how long it may take, and which group it runs in."""

from dataclasses import dataclass

GROUP_SECONDS = 540
"""A group's parts may take no longer together, and it is at its end by then, whatever was built before."""


@dataclass(frozen=True)
class Part:
    """`function` is MODULE:FUNCTION; `real`: it cannot run on the simulated device; `shares`: it
    says nothing where gpushare cannot run; `peers`: it runs under other preload libraries, too, which takes as long
    again for each. `note`: what the words in its rows mean."""

    name: str
    group: str
    title: str
    function: str
    seconds: int
    real: bool = False
    shares: bool = False
    peers: bool = False
    note: str = ""


_POLICY_NOTE = (
    "Two programs on one device: `free`, the driver's own slicing; `drain`, leases of 20 ms in turns, the next when "
    "nothing of the last is in flight; `overlap`, the same, but at most 1 ms after the revoke; `together`, both at "
    "once, each with 2 ms in flight. `decode` is a graph of 9 ms, `eager` fills 30 % of its time, `gemm` is kernels of "
    "20 ms, `long` a graph of 200 ms."
)

PARTS = (
    Part(
        "policy-1",
        "experiments-a1",
        "A. Sharing policy, first half of the pairs",
        "gpubench.parts.policy:first",
        480,
        note=_POLICY_NOTE,
    ),
    Part(
        "policy-2",
        "experiments-a2",
        "A. Sharing policy, second half of the pairs",
        "gpubench.parts.policy:second",
        480,
        note=_POLICY_NOTE,
    ),
    Part("hidden", "experiments-b", "B. Hidden memory", "gpubench.parts.hidden:measure", 420),
    Part("stalls", "experiments-c1", "C. Stalls", "gpubench.parts.stalls:measure", 300),
    Part(
        "copies",
        "experiments-c2",
        "C. Copies beside compute",
        "gpubench.parts.stalls:copies",
        300,
        peers=True,
    ),
    Part("clients", "product-1", "1. Clients caught", "gpubench.parts.clients:measure", 480, shares=True, peers=True),
    Part("memory", "product-2", "2. Memory", "gpubench.parts.memory:measure", 290, shares=True, peers=True),
    Part("metering", "product-2", "4. Metering", "gpubench.parts.metering:measure", 240, shares=True),
    Part(
        "overhead",
        "product-3",
        "3. Overhead, launches",
        "gpubench.parts.overhead:launches",
        300,
        shares=True,
        peers=True,
    ),
    Part("reclaim", "product-3", "7. Reclaim", "gpubench.parts.reclaim:measure", 220, shares=True, peers=True),
    Part(
        "frameworks",
        "product-4",
        "3. Overhead, PyTorch",
        "gpubench.parts.overhead:frameworks",
        510,
        real=True,
        shares=True,
        peers=True,
    ),
    Part("shares", "product-5", "5. Shares", "gpubench.parts.shares:measure", 510, shares=True, peers=True),
    Part("protection", "product-6", "6. Protection", "gpubench.parts.protection:measure", 420, shares=True, peers=True),
    Part("guard", "product-7", "8. Guard facts", "gpubench.parts.guard:measure", 150),
    Part("suspend", "product-7", "9. Suspend, by the driver itself", "gpubench.parts.suspend:measure", 360),
)

PREFLIGHT = Part("preflight", "", "Whether gpushare can share anything here", "gpubench.parts.preflight:measure", 120)
"""No part of its own: it is run before the first that shares, and one that fails stands for all of them."""

NOT_BUILT = (
    "Suspending a grant through gpushare: part 9 calls the driver itself.",
    "The guard's kernel half: limits enforced by BPF programs or by the driver (`dmem`). Part 8 tries timeslice, "
    "schedule and preempt controls on processes of its own; gpushare uses none of them.",
)


def groups() -> list[str]:
    return list(dict.fromkeys(part.group for part in PARTS))


def select(parts: list[str], group: str | None) -> list[Part]:
    """Raises KeyError with the name that is none."""
    known = {part.name: part for part in PARTS}
    for name in parts:
        if name not in known:
            raise KeyError(name)
    if group is not None and group not in groups():
        raise KeyError(group)
    if not parts and group is None:
        return list(PARTS)
    return [part for part in PARTS if part.name in parts or part.group == group]
