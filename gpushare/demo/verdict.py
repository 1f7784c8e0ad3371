"""The claims and whether they held: a pure function of the measurements."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from gpushare.text.units import format_size, format_time

SHARE_ERROR_MILLI = 20  # two points
BORROWED_MILLI = 950
RECLAIM_MS = 20.0  # one lease

CUDA_ERROR_OUT_OF_MEMORY = 2
PIECE_BYTES = 16 << 20  # the borrower allocates its 6 GiB in pieces of this size, so that it gets close to its limit


Verdict = Literal["pass", "fail", "busy"]


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant of the demo and its request."""

    name: str
    time_milli: int
    memory_bytes: int


@dataclass
class Facts:
    """The measurements. `shares`: phase -> tenant -> milli."""

    owner: Tenant
    borrower: Tenant
    shares: dict[str, dict[str, int]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    pids: dict[str, int] = field(default_factory=dict)
    peak_bytes: dict[str, int] = field(default_factory=dict)
    reclaim_ms: float | None = None
    refused_at_bytes: int | None = None
    refused_with: int | None = None
    refused_with_name: str = ""
    owner_bytes_before: int = 0
    owner_bytes_after: int = 0
    alive_after_reclaim: bool = False
    kills: int = 0

    @property
    def tenants(self) -> tuple[Tenant, Tenant]:
        """Both, the owner first."""
        return self.owner, self.borrower


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim of the demo, whether it held, and its measurement. `why_not`: why a measurement that does not bear the
    claim out says nothing against it either; empty: it does."""

    claim: str
    ok: bool
    measured: str
    why_not: str = ""


def verdict(claims: Sequence[Claim]) -> Verdict:
    """Of all claims: `busy` where some could not be judged, and no other failed."""
    if any(not claim.ok and not claim.why_not for claim in claims):
        return "fail"
    return "pass" if all(claim.ok for claim in claims) else "busy"


def claims_as_json(claims: Sequence[Claim]) -> dict[str, Any]:
    """The claims and the verdict for `--json`."""
    return {"verdict": verdict(claims), "claims": [*map(asdict, claims)]}


def claims(facts: Facts) -> list[Claim]:
    """Evaluates all claims, in the order of the demo."""
    owner, borrower = facts.owner, facts.borrower
    found = [_share(facts, tenant, "both", "while both want the device") for tenant in facts.tenants]
    alone = facts.shares["owner_idle"][borrower.name]
    found.append(
        Claim(
            f"{borrower.name} gets the whole device while {owner.name} is idle",
            alone >= BORROWED_MILLI,
            format_time(alone),
        )
    )
    found.append(_share(facts, owner, "owner_back", "again when it comes back"))
    found.append(_reclaim(facts))
    found.append(
        Claim(
            f"{borrower.name} lives on after giving the device back",
            facts.alive_after_reclaim,
            f"process {facts.pids[borrower.name]} {'runs' if facts.alive_after_reclaim else 'is gone'}",
        )
    )
    found.append(_refusal(facts))
    unharmed = facts.owner_bytes_after == facts.owner_bytes_before
    within = _within(facts.shares["over_limit"][owner.name], owner)
    found.append(
        Claim(
            f"{owner.name} is unharmed by that",
            unharmed and within,
            f"{format_time(facts.shares['over_limit'][owner.name])}, holds {format_size(facts.owner_bytes_after)}",
        )
    )
    for tenant in facts.tenants:
        peak = facts.peak_bytes[tenant.name]
        found.append(
            Claim(
                f"{tenant.name} never held more than {format_size(tenant.memory_bytes)}",
                0 < peak <= tenant.memory_bytes,
                format_size(peak),
            )
        )
    found.append(Claim("nobody was killed", facts.kills == 0, str(facts.kills)))
    return found


def _within(got: int, tenant: Tenant) -> bool:
    return abs(got - tenant.time_milli) <= SHARE_ERROR_MILLI


def _share(facts: Facts, tenant: Tenant, phase: str, when: str) -> Claim:
    got = facts.shares[phase][tenant.name]
    return Claim(f"{tenant.name} gets {format_time(tenant.time_milli)} {when}", _within(got, tenant), format_time(got))


def _reclaim(facts: Facts) -> Claim:
    took = facts.reclaim_ms
    return Claim(
        f"{facts.owner.name} has the device back within {RECLAIM_MS:.0f} ms",
        took is not None and took <= RECLAIM_MS,
        f"{took:.2f} ms" if took is not None else "it was not served",
    )


def _refusal(facts: Facts) -> Claim:
    """Reaching the limit means: not above it, and not so far below it that the next allocation would have fitted."""
    limit, held = facts.borrower.memory_bytes, facts.refused_at_bytes
    ok = held is not None and facts.refused_with == CUDA_ERROR_OUT_OF_MEMORY and held <= limit < held + PIECE_BYTES
    return Claim(
        f"{facts.borrower.name} asks for 6GiB and is refused at its {format_size(limit)}",
        ok,
        f"{facts.refused_with_name} holding {format_size(held)}" if held is not None else "never refused",
    )
