"""Receipts, attempts and findings of the node API as sentences, for the command line and the dashboard."""

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from gpushare.text import rules
from gpushare.text.overview import guarantee
from gpushare.text.reasons import refused_in_words
from gpushare.text.units import format_size, format_time

DAY = "%Y-%m-%d %H:%M:%S"
"""Of `clock`: with the date."""
_WAITED_NS = 1000


def clock(at_ns: int, form: str = "%H:%M:%S.%f") -> str:
    """A moment as local time."""
    return datetime.fromtimestamp(at_ns / 1e9, UTC).astimezone().strftime(form)


def ms(ns: int) -> str:
    """Milliseconds with three decimals, as in "1.030 ms"."""
    return f"{ns / 1e6:.3f} ms"


def _who(event: Any, which: str) -> str:
    tenant = event["other_tenant" if which == "other" else "tenant"]
    return f"{event[which]} of {tenant}" if event[which] else "a grant that ended"


def _happened(event: Any) -> str:
    kind, wait, reclaim = event["kind"], ms(event["wait_ns"]), ms(event["reclaim_ns"])
    whom = f" for {_who(event, 'other')}" if event["other"] else ""
    if kind == "lease":
        before = f", {reclaim} of it for what {_who(event, 'other')} still ran" if event["reclaim_ns"] else ""
        return f"served after {wait}{before}{' (woke)' if event['woke'] else ''}"
    if kind == "left":
        return f"waits no more after {wait}, and was not served"
    if kind == "beside":
        return f"has the device back beside others, {reclaim} after it was taken"
    if kind == "revoke":
        return f"lost the device{', which it had borrowed' if event['level'] == 'surplus' else ''}{whom and f',{whom}'}"
    if kind == "handover":
        return f"handed over to {_who(event, 'other')} after {reclaim}"
    if kind == "drained":
        still = ", though it still ran" if event["running"] else ""
        return f"gave the device up{whom} after {reclaim}{still}"
    if kind == "refused" and event["refused"]:
        return refused_in_words(event["value"], event["refused"])
    if kind == "lie":
        claim = f"{event['word']} = {event['value']} in the slot of process {event['pid']}"
        return f"says what cannot be: {claim}; from now on charged by the most it could have used"
    if kind == "late":
        return f"still runs {reclaim} after it lost the device"
    return "wants the device again" if kind == "wake" else str(kind)


def event(event: Any) -> str:
    """One receipt, one line."""
    why = [rules.LEASE[event["rule"]]] if event["rule"] in rules.LEASE else []
    if event["guarantee_milli"] or event["extra_milli"]:
        share = guarantee(event["guarantee_milli"], event["extra_milli"])
        why.append(f"{share}, had {format_time(event['had_milli'])}")
    reasons = f": {'; '.join(why)}" if why else ""
    return f"{clock(event['at_ns'])}  device {event['device']}  {_who(event, 'grant')}  {_happened(event)}{reasons}"


def waits(events: Iterable[Any]) -> list[dict[str, Any]]:
    """What waits (receipts of kind `lease` or `left`) come to: a sentence for each tenant and device, the longest wait
    first. A wait below a microsecond does not count: the device was free."""
    ended = [one for one in events if one["kind"] in ("lease", "left") and one["wait_ns"] >= _WAITED_NS]
    found: dict[tuple[str, int], list[Any]] = {}
    for one in ended:
        found.setdefault((one["tenant"] or "a tenant that is gone", one["device"]), []).append(one)
    span = max((one["at_ns"] for one in ended), default=0) - min((one["at_ns"] for one in ended), default=0)
    rows = [
        {"tenant": tenant, "longest_ns": max(one["wait_ns"] for one in own), "text": _waited(own, device, span)}
        for (tenant, device), own in found.items()
    ]
    return sorted(rows, key=lambda row: (-row["longest_ns"], row["tenant"], row["text"]))


def _waited(own: list[Any], device: int, span_ns: int) -> str:
    longest, whole = (ms(take(one["wait_ns"] for one in own)) for take in (max, sum))
    times = f"{len(own)} times in {span_ns / 1e9:.1f} s, {longest} at most, {whole} together" if own[1:] else longest
    before = Counter((one["other_tenant"], one["rule"]) for one in own if one["other_tenant"]).most_common(1)
    if not before:
        return f"waited for device {device}: {times}"
    (other, rule), _ = before[0]
    why = f", until: {rules.LEASE[rule]}" if rule in rules.LEASE else ""
    return f"waited for device {device}: {times}; {'mostly ' if own[1:] else ''}{other} had it before{why}"


def attempt(attempt: Any) -> str:
    """One container that asked for a GPU in another way, one line."""
    who, ways = f"container {attempt['container']}  {attempt['path']}", ", ".join(attempt["by"])
    return f"{clock(attempt['at_ns'], DAY)}  {who}: asked for a GPU by {ways}"


_FOUND = {
    "evader": "uses device {device} from within grant {grant} of {tenant} and has not joined",
    "excess": "and the others of grant {grant} of {tenant} hold more of device {device} than they may",
    "kept-memory": "and the others of grant {grant} of {tenant} keep what is said to have left device {device}",
    "overuse": "and the others of grant {grant} of {tenant} use device {device} for longer than it is charged",
    "outside": "uses device {device} and is in no grant",
    "unowned": "device {device} has memory in use that no process has",
}


def finding(finding: Any) -> str:
    """One finding of the audit, one line."""
    what = _FOUND.get(finding["kind"], finding["kind"]).format(**finding)
    size = format_size(finding["memory_bytes"]) if finding["memory_bytes"] is not None else "?"
    done = finding["act"] + (f" after {ms(finding['stop_ns'])}" if finding["stop_ns"] is not None else "")
    note = f" ({finding['note']})" if finding["note"] else ""
    over = f"; {finding['outcome']}" if finding["outcome"] else ""
    who = f"process {finding['pid']} [{finding['command'] or '?'}] " if finding["pid"] else ""
    return f"{clock(finding['at_ns'], DAY)}  {who}{what}: {size}; {done}{note}{over}"
