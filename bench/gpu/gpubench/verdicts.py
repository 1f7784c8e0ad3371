"""What the numbers of a result decide. gpushare's design rests on claims about how a device behaves; each is held
against the rows that speak for or against it, in whole pairs of programs and with what a window can tell apart.

Nothing here reads a file or a clock: a result that is kept can be judged again."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

from gpubench.rows import MissingRowError, Row, Rows, value_of
from gpubench.stats import number

HOLDS, CONTRADICTED, CLOSE, NOT_MEASURED = "holds", "contradicted", "too close to say", "not measured"

FULL = ("decode", "gemm", "long")
LAUNCH_BOUND = "eager"
LEASES, SHARED = ("drain", "overlap"), ("together", "free")
POLICY = ("policy-1", "policy-2")
WAKE = rf"wake to the end of the first kernel (?P<beside>beside (?:{'|'.join(FULL)}))"
OWNER = r"owner's wake to the end of its first kernel (?P<beside>beside .*)"
Wakes = dict[str, dict[str, dict[str, float]]]  # beside what -> quantile -> policy or arm -> ms

MARGIN = 2.0
"""Points of alone: what the arbiter sets aside for switching, so that less is no reason to do without leases."""
TAIL = 0.2
"""Of a p99 of some 200 wakes: it is the second or third longest of them, so a fifth more or less is chance."""
SAME, INFLATED = 1.1, 1.25
"""Times alone: a median that kernels which run undisturbed stay under, and one beyond what switching alone explains."""
PAGE_MIB = 2
"""The driver takes device memory in such pieces, so that two sources that agree may differ by one."""


@dataclass(frozen=True)
class Verdict:
    claim: str
    verdict: str
    figures: str
    """Of one that was not measured: what is missing."""


def judged(support: Sequence[float], holds_from: float, contradicted_below: float) -> str:
    """`support`: by how much each pair of programs, or lowest, median and highest of a row, speaks for the claim. It
    holds when all do; it is contradicted when the median does not."""
    if min(support) >= holds_from:
        return HOLDS
    return CONTRADICTED if statistics.median(support) < contradicted_below else CLOSE


def _best(policies: Sequence[str], found: dict[str, dict[str, float]]) -> str:
    """By its median over all pairs: the best of each pair would be the luckiest."""
    return max(policies, key=lambda policy: statistics.median(one[policy] for one in found.values()))


def _against(
    found: dict[str, dict[str, float]], first: str, second: str, unit: str, of: int
) -> tuple[list[float], str]:
    """first - second of each, and both in words. `of`: how many pairs there are to measure."""
    differences = {name: one[first] - one[second] for name, one in found.items()}
    least = min(differences, key=lambda name: differences[name])
    medians = [number(statistics.median(one[policy] for one in found.values())) for policy in (first, second)]
    text = f"`{first}` {medians[0]} {unit}, `{second}` {medians[1]}"
    if len(found) == 1:
        return list(differences.values()), f"{text} ({least}{f', 1 of {of} pairs' if of > 1 else ''})"
    count = f"{len(found)} pairs" if len(found) == of else f"{len(found)} of {of} pairs"
    text += f" (medians of {count}); difference {number(min(differences.values()))}"
    return list(differences.values()), f"{text} to {number(max(differences.values()))}, least for {least}"


def _sums(rows: Rows, names: Sequence[str]) -> dict[str, dict[str, float]]:
    found = rows.find(POLICY, r"(?P<pair>\w+ \+ \w+): throughput of both, summed", "the pairs of programs")
    sums = {match["pair"]: row["values"] for match, row in found if match["pair"] in names}
    if not sums:
        raise MissingRowError(", ".join(names), POLICY)
    return sums


def _pairs(kinds: Sequence[str]) -> list[str]:
    ordered = [kind for kind in ("decode", LAUNCH_BOUND, "gemm", "long") if kind in kinds]
    return [f"{first} + {second}" for first, second in combinations_with_replacement(ordered, 2)]


def _quantiles(rows: Rows, parts: Sequence[str], pattern: str, what: str, arms: Sequence[str]) -> Wakes:
    """Rows `pattern, p50` and `pattern, p99` that have both these arms."""
    found: Wakes = {}
    for match, row in rows.find(parts, rf"{pattern}, (?P<quantile>p50|p99)", what):
        if set(arms) <= set(row["values"]):
            found.setdefault(match["beside"], {})[match["quantile"]] = row["values"]
    whole = {beside: both for beside, both in found.items() if len(both) == 2}
    if not whole:
        raise MissingRowError(f"{what} under {' and '.join(arms)}", parts)
    return whole


def _sooner(rows: Rows, parts: Sequence[str], pattern: str, first: str, second: str) -> tuple[str, str]:
    """Judged by the p99; the p50 stands before it."""
    found = _quantiles(rows, parts, pattern, "a wake beside a program that fills the device", (first, second))
    texts = []
    for beside, both in found.items():
        pair = [f"{number(both['p50'][arm])} / {number(both['p99'][arm])}" for arm in (first, second)]
        texts.append(f"{beside} {pair[0]} : {pair[1]}")
    support = [1 - both["p99"][first] / both["p99"][second] for both in found.values()]
    return judged(support, TAIL, -TAIL), f"ms, p50 / p99, `{first}` : `{second}`: {', '.join(texts)}"


def exclusive(rows: Rows) -> tuple[str, str]:
    names = _pairs(FULL)
    sums = _sums(rows, names)
    support, text = _against(sums, _best(LEASES, sums), "free", "% of alone, summed", len(names))
    return judged(support, -MARGIN, -MARGIN), text


def together(rows: Rows) -> tuple[str, str]:
    sums = _sums(rows, _pairs([LAUNCH_BOUND]))
    support, text = _against(sums, "together", _best(LEASES, sums), "% of alone, summed", 1)
    return judged(support, MARGIN, -MARGIN), text


def beside_full(rows: Rows) -> tuple[str, str]:
    pattern = rf"(?P<pair>\w+ \+ \w+): {LAUNCH_BOUND} throughput"
    found = rows.find(POLICY, pattern, "a launch-bound program beside one that fills the device")
    own = {match["pair"]: row["values"] for match, row in found}
    unit = "% of alone for the launch-bound one"
    support, text = _against(own, _best(SHARED, own), _best(LEASES, own), unit, len(FULL))
    return judged(support, MARGIN, -MARGIN), text


def overlap_throughput(rows: Rows) -> tuple[str, str]:
    names = _pairs((*FULL, LAUNCH_BOUND))
    support, text = _against(_sums(rows, names), "overlap", "drain", "% of alone, summed", len(names))
    return judged(support, -MARGIN, -MARGIN), text


def overlap_wake(rows: Rows) -> tuple[str, str]:
    return _sooner(rows, POLICY, WAKE, "overlap", "drain")


def lease_wake(rows: Rows) -> tuple[str, str]:
    return _sooner(rows, POLICY, WAKE, "overlap", "free")


def owner_wake(rows: Rows) -> tuple[str, str]:
    return _sooner(rows, ("reclaim",), OWNER, "gpushare", "bare")


def spans(rows: Rows) -> tuple[str, str]:
    pairs = _pairs(FULL)
    pattern = r"(?P<pair>\w+ \+ \w+): \w+(?: #\d)? event spans"
    both = [row["values"] for match, row in rows.find(POLICY, pattern, "event spans") if match["pair"] in pairs]
    free = [one["free"] for one in both if "free" in one]
    drain = [one["drain"] for one in both if "drain" in one]
    if not free or not drain:
        raise MissingRowError("event spans of programs that fill the device", POLICY)
    texts = [
        f"`{policy}` {number(statistics.median(one))} ({number(min(one))} to {number(max(one))}, n={len(one)})"
        for policy, one in (("free", free), ("drain", drain))
    ]
    if min(free) >= INFLATED and max(drain) <= SAME:
        verdict = HOLDS
    else:
        against = statistics.median(free) < SAME or statistics.median(drain) > INFLATED
        verdict = CONTRADICTED if against else CLOSE
    return verdict, f"times alone: {', '.join(texts)}"


def _neighbour(rows: Rows, label: str) -> dict[str, Row]:
    pattern = rf"a 20 us kernel beside {label}, (?P<quantile>p50|p99|max)"
    found = rows.find(("stalls",), pattern, f"a 20 us kernel beside {label}")
    return {match["quantile"]: row for match, row in found}


def preempted(rows: Rows) -> tuple[str, str]:
    found = _neighbour(rows, "a kernel that spins on every multiprocessor")
    spun = value_of(found["max"], "other_s") * 1e6
    p50, p99, longest = (found[quantile]["value"] for quantile in ("p50", "p99", "max"))
    # A tenth of it: some of the kernels may be the neighbour's first, behind whatever starts with the spinning one.
    verdict = HOLDS if longest <= spun / 10 else CONTRADICTED if p50 >= spun / 2 else CLOSE
    text = (
        f"p50 {number(p50)} us, p99 {number(p99)}, longest {number(longest)}; the other kernel spins {spun / 1e6:.3g} s"
    )
    return verdict, text


def blocked(rows: Rows) -> tuple[str, str]:
    found = _neighbour(rows, "a stream blocked in wait-value")
    times = {name: found[name]["value"] / value_of(found[name], "alone_us") for name in ("p50", "p99")}
    verdict = CONTRADICTED if times["p50"] > INFLATED else CLOSE
    if times["p50"] <= SAME and times["p99"] <= INFLATED:
        verdict = HOLDS
    texts = [
        f"{name} {number(found[name]['value'])} us, alone {number(value_of(found[name], 'alone_us'))}" for name in times
    ]
    return verdict, "; ".join(texts)


def bounds(rows: Rows) -> tuple[str, str]:
    pattern = r"6 ms of kernels behind a wait-value, a (?P<mode>hard|soft) gate of 2 ms"
    found = {match["mode"]: row for match, row in rows.find(("stalls",), pattern, "the gates before a wait-value")}
    if set(found) != {"hard", "soft"}:
        raise MissingRowError("one of the two gates before a wait-value", ("stalls",))
    hung = {mode: (value_of(row, "hung"), value_of(row, "runs")) for mode, row in found.items()}
    verdict = CLOSE
    if hung["hard"][0] == hung["hard"][1] and hung["soft"][0] == 0:
        verdict = HOLDS
    elif hung["hard"][0] == 0 or hung["soft"][0] == hung["soft"][1]:
        verdict = CONTRADICTED
    text = ", ".join(f"{mode}: {n:.0f} of {runs:.0f} runs hung" for mode, (n, runs) in hung.items())
    return verdict, text if found["soft"]["value"] is None else f"{text}, {number(found['soft']['value'])} ms"


def copies(rows: Rows) -> tuple[str, str]:
    what = "copies and compute of two bare programs"
    copying = rows.one(("copies",), "copies beside another's compute, bare", what)
    computing = rows.one(("copies",), "compute beside another's copies, bare", what)
    alone = value_of(copying, "alone")
    kept = [[100 * copying[key] / alone for key in ("low", "value", "high")]]
    kept += [[computing[key] for key in ("low", "value", "high")]]
    # Taking turns, both together keep 100 %: a tenth more than that is no running beside.
    verdict = CONTRADICTED if kept[0][1] + kept[1][1] <= 110 else CLOSE
    if min(kept[0] + kept[1]) >= 90:
        verdict = HOLDS
    return verdict, f"copies keep {number(kept[0][1])} % of their rate alone, compute {number(kept[1][1])} %"


def local_memory(rows: Rows) -> tuple[str, str]:
    row = rows.one(("hidden",), "a kernel with 16 KiB of local memory", "a kernel with much local memory")
    most = local_mib(row)
    # What the context's own stack had is given back or is not, which no document says.
    least = most * (1 - value_of(row, "stack_bytes") / value_of(row, "local_bytes"))
    low, high = 0.95 * least - PAGE_MIB, 1.05 * most + PAGE_MIB
    inside = [low <= one <= high for one in (row["low"], row["value"], row["high"])]
    verdict = HOLDS if all(inside) else CLOSE if any(inside) else CONTRADICTED
    threads = f"{number(value_of(row, 'processors'))} x {number(value_of(row, 'threads'))} threads"
    return (
        verdict,
        f"{number(row['value'])} MiB; {threads} x {number(value_of(row, 'local_bytes'))} bytes are {most:.0f}",
    )


def local_mib(row: Row) -> float:
    """What the rule says."""
    return value_of(row, "processors") * value_of(row, "threads") * value_of(row, "local_bytes") / (1 << 20)


def _beyond(rows: Rows, source: str) -> Row:
    what = f"{source} beside NVML's use of the device"
    return rows.one(("hidden",), f"all steps together: {source} beyond NVML's use of the device", what)


def whole_device(rows: Rows) -> tuple[str, str]:
    row = _beyond(rows, "cuMemGetInfo")
    support = [PAGE_MIB - abs(row[key]) for key in ("low", "value", "high")]
    return judged(support, 0, 0), f"cuMemGetInfo counts {number(row['value'])} MiB more"


def of_process(rows: Rows) -> tuple[str, str]:
    row = _beyond(rows, "NVML, of the process")
    support = [-row[key] - PAGE_MIB for key in ("low", "value", "high")]
    return judged(support, 0, 0), f"NVML's bytes of the process are {number(-row['value'])} MiB less than the device's"


Judge = Callable[[Rows], tuple[str, str]]


@dataclass(frozen=True)
class Claim:
    text: str
    judge: Judge
    rests: str = ""
    """What in this project is as it is because of it."""


_TURNS, _REVOKE = "native/arbiter/core_state.h", "native/arbiter/api.c"
CLAIMS = (
    Claim("Exclusive when full: leases do as much work as the driver's own slicing", exclusive, _TURNS),
    Claim("Together when not: two launch-bound programs do more side by side than in turns", together, _TURNS),
    Claim("A launch-bound program beside one that fills the device loses under exclusive leases", beside_full, _TURNS),
    Claim("A revoke that does not wait for a dry queue costs no work", overlap_throughput, _REVOKE),
    Claim("A revoke that does not wait for a dry queue wakes another sooner", overlap_wake, _REVOKE),
    Claim("A lease wakes a program sooner than the driver's own slicing does", lease_wake, _REVOKE),
    Claim(
        "gpushare wakes an owner sooner than the driver's own slicing does", owner_wake, "native/arbiter/core_choose.c"
    ),
    Claim(
        "Event spans grow when two share the device, and do not under leases that drain",
        spans,
        "native/interposer/meter/meter.h",
    ),
    Claim("The hardware preempts inside a kernel", preempted, "native/sim/engine/runlist.c"),
    Claim("A stream blocked in wait-value costs its neighbour nothing", blocked, "native/sim/api/stream_ops.c"),
    Claim(
        "A hard bound on work in flight hangs a program that orders work by wait-value, a soft one does not",
        bounds,
        "native/interposer/time/timing.h",
    ),
    Claim("Copies run beside compute, so they need no lease", copies, "native/interposer/hooks/copies.c"),
    Claim(
        "Local memory is bytes a thread x threads the device holds, taken at the first launch",
        local_memory,
        "native/interposer/memory/implicit.c",
    ),
    Claim("NVML's use of the whole device omits nothing", whole_device, "gpushare/node/probe.py"),
    Claim("NVML's bytes of a process omit a part of what its context takes", of_process, "gpushare/node/probe.py"),
)


def ask(claims: Sequence[Claim], rows: Rows) -> list[Verdict]:
    """Never raises: what was measured must not be lost for a row that cannot be judged."""
    found = []
    for claim in claims:
        try:
            verdict, figures = claim.judge(rows)
        except MissingRowError as missing:
            verdict, figures = NOT_MEASURED, str(missing)
        except Exception as error:
            verdict, figures = NOT_MEASURED, f"cannot be judged: {type(error).__name__}: {error}"
        if verdict == CONTRADICTED:
            figures += f". `{claim.rests}` rests on the claim"
        found.append(Verdict(claim.text, verdict, figures))
    return found
