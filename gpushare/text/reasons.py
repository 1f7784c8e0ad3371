"""Why a grant is slow, or was refused memory, in ranked sentences that end in what to type. Pure: made from answers of
the node API, for the daemon, the command line and the dashboard."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

from gpushare.text.overview import WHOLE, extra_milli, guarantee, guaranteed_milli
from gpushare.text.rules import ENDED
from gpushare.text.units import format_size, format_time

Json: TypeAlias = Any
"""A wire type of gpushare.api, as a plain dict."""

_WAITS_MILLI = 50
"""A shorter wait in the last second does not make a program slow."""
_NEAR_MILLI = 50
"""Leases are given in slices: what is this near to a guarantee or a limit has reached it."""
_FULL_MILLI = 900
_NAMED = 3
"""Others that are named, those with most time first."""
RECENT_NS = 60_000_000_000
"""A refusal of memory is news for this long."""
_STEPS = (1 << 28, 1 << 30)


def refused_in_words(calls: int, last: Json) -> str:
    """`calls`: how many were refused, of which `last`, a MemoryRefused, is the latest."""
    asked, left, limit = (format_size(last[name]) for name in ("asked_bytes", "left_bytes", "limit_bytes"))
    often = "" if calls == 1 else f" {calls} times, the last time"
    text = f"refused memory{often} when it asked for {asked} with {left} left of {limit}"
    if last["why"] == "device":
        return f"{text}: the device itself was full"
    if last["why"] == "away":
        return f"{text}: its room on the device was others' meanwhile"
    return text


def refused(grant: Json, device: Json, at_ns: int) -> str:
    """The refusals of a grant on one of its devices (a GrantDevice), when, and what to type; empty: there were none.
    `at_ns`: wall time now."""
    calls, last = device["memory_refusals"], device["memory_refused"]
    if not calls or last is None:
        return ""
    ago = f"{_span(max(0, at_ns - last['at_ns']))} ago"
    return f"{refused_in_words(calls, last)}, {ago}: {_more_memory(grant, last)}"


def _more_memory(grant: Json, last: Json) -> str:
    if last["why"] == "device":
        return "somebody uses the device without a share: `gpushare events --findings`, `gpushare doctor`"
    if last["why"] == "away":
        return "start it with --idle-memory keep, or give it more patience (allocation_wait_seconds)"
    size = format_size(_rounded(last["limit_bytes"] - last["left_bytes"] + last["asked_bytes"]))
    if grant["phase"] in ENDED:
        return f"start it again with --memory {size}"
    return f"`gpushare grant resize {grant['id']} --memory {size}`, or let the program take less"


def _rounded(size: int) -> int:
    step = _STEPS[size > _STEPS[1]]
    return -(-size // step) * step


def slow(
    grant: Json,
    others: Sequence[Json],
    devices: Sequence[Json],
    tenant: Json | None,
    findings: Sequence[Json],
    at_ns: int,
    link: str = "",
) -> list[str]:
    """Why a grant is not faster, the most important reason first. `others`: grants, among them those on its devices;
    `devices`: of the node; `tenant`: its own; `findings`: of the audit. `at_ns`: wall time now. `link`: what its
    programs' link costs them, where they are on another machine and it costs them much."""
    found = [text for device in grant["devices"] if (text := refused(grant, device, at_ns))]
    if grant["phase"] in ENDED:
        return found
    if grant["phase"] not in ("active", "suspended"):
        return [*found, f"nothing of it runs yet: it is {grant['phase']}"]
    stopped = [*_stopped(grant, findings), *_broken(grant, devices), *_away(grant)]
    if stopped:
        return [*stopped, *found]
    if not grant["processes"]:
        return [*found, "no process of it uses the GPU: none has called CUDA yet, or all have ended"]
    waits = [text for device in grant["devices"] if (text := waiting(grant, device, others, devices, tenant))]
    if waits or link:
        return [*waits, *filter(None, [link]), *found]
    return [*found, *_unhindered(grant)]


def _stopped(grant: Json, findings: Sequence[Json]) -> Iterator[str]:
    for one in findings:
        if one["grant"] == grant["id"] and not one["outcome"] and one["act"] in ("frozen", "stopped", "held"):
            what = {"frozen": "its processes are frozen", "stopped": f"its process {one['pid']} is stopped"}
            text = what.get(one["act"], "its processes are frozen again and again, to keep it to its share")
            yield f"{text}, because of what process {one['pid']} does past its share: `gpushare events --findings`"


def _broken(grant: Json, devices: Sequence[Json]) -> Iterator[str]:
    why = {device["id"]: device["health_reason"] for device in devices}
    for device in grant["devices"]:
        if device["health"] != "healthy":
            reason = f" ({why[device['id']]})" if why.get(device["id"]) else ""
            yield f"device {device['index']} does not work{reason}: start it again on another, `gpushare devices`"


def _away(grant: Json) -> Iterator[str]:
    memory, name = grant["residency"], grant["id"]
    if grant["eviction"] is not None:
        size, owner = format_size(grant["eviction"]["bytes"]), grant["eviction"]["for_tenant"]
        yield f"{size} that it has on loan are wanted back by {owner}: end it or make it smaller"
    if memory is None or memory["where"] == "resident":
        return
    since = f" since {_time(memory['since_ns'])}" if memory["since_ns"] else ""
    if memory["where"] == "resuming" or memory["wanted"]:
        waits = f": {memory['waits']}" if memory["waits"] else ""
        yield f"its memory comes back from host memory{waits}; with --idle-memory keep it never leaves its device"
    elif memory["hold"]:
        yield f"its memory is held in host memory{since} until it is resumed: `gpushare grant resume {name}`"
    else:
        yield (
            f"its memory is in host memory{since}, and comes back with its next call: `gpushare grant resume {name}`"
            " brings it back now"
        )


def waiting(
    grant: Json,
    device: Json,
    others: Sequence[Json],
    devices: Sequence[Json] = (),
    tenant: Json | None = None,
    least_milli: int = _WAITS_MILLI,
) -> str:
    """Why a grant waited for one of its devices (a GrantDevice), and what to type; empty: it waited for less than
    `least_milli` of the last second. `devices`, `tenant`: of the node and of the grant, where they are known."""
    if device["waited_milli"] < least_milli:
        return ""
    index, used = device["index"], device["used_milli"]
    guaranteed, extra = guaranteed_milli(device), extra_milli(device)
    limit = device["served_limit_milli"] or device["time_limit_milli"]
    waits = f"waited {format_time(device['waited_milli'])} of the last second for device {index}"
    if limit < WHOLE and used >= limit - max(_NEAR_MILLI // 2, limit // 10):
        return f"{waits}: it may have at most {format_time(limit)} and got {format_time(used)}: {_limit(grant, device)}"
    if (gang := grant["gang"]) is not None and gang["leases"] == "together" and len(grant["devices"]) > 1:
        count = len(grant["devices"])
        return (
            f"{waits}: it runs only while it has all its {count} devices at once; where its processes do not wait for"
            " each other, start it with --turns independent"
        )
    if used < guaranteed + extra - _NEAR_MILLI:
        got = f"{waits}: it is {guarantee(guaranteed, extra)} and got {format_time(used)}"
        events = f"`gpushare events --grant {grant['id']}` shows each wait"
        if used + device["waited_milli"] < _FULL_MILLI:
            return f"{got}, for it asked for no more: each burst of its work waits for its turn first: {events}"
        return f"{got}{_rest(grant, device, others)}: it is owed the rest, and gets it within a second: {events}"
    had = (
        f"it is {guarantee(guaranteed, extra)} and had it"
        if guaranteed + extra
        else "it is guaranteed nothing there and gets what others leave idle"
    )
    return f"{waits}: {had}{_rest(grant, device, others)}: {_more_time(grant, device, devices, tenant)}"


def _limit(grant: Json, device: Json) -> str:
    if device["time_limit_milli"] < WHOLE:
        return f"`gpushare grant resize {grant['id']} --time-limit 100%`"
    return f"that is the limit of {grant['tenant']}: `gpushare tenants list`"


def _rest(grant: Json, device: Json, others: Sequence[Json]) -> str:
    """Who has the rest of the device, in words."""
    rows = [
        (part["used_milli"], guarantee(guaranteed_milli(part), extra_milli(part)), one)
        for one in others
        if one["id"] != grant["id"]
        for part in one["devices"]
        if part["id"] == device["id"] and part["used_milli"]
    ]
    rows.sort(key=lambda row: (-row[0], row[2]["id"]))
    named = [
        f"{one['id']} of {one['tenant']} got {format_time(used)} ({guaranteed})"
        for used, guaranteed, one in rows[:_NAMED]
    ]
    if len(rows) > _NAMED:
        named.append(f"{len(rows) - _NAMED} more got {format_time(sum(row[0] for row in rows[_NAMED:]))}")
    return f"; {', '.join(named)}" if named else ""


def _more_time(grant: Json, device: Json, devices: Sequence[Json], tenant: Json | None) -> str:
    here = next((one for one in devices if one["id"] == device["id"]), None)
    if here is None:
        return f"`gpushare why {grant['id']}` says what to do"
    idle = [
        one["index"]
        for one in devices
        if one["id"] != device["id"]
        and one["allocatable"]["time"] >= WHOLE // 2
        and one["allocatable"]["memory"] >= device["memory_limit_bytes"]
    ]
    free = here["allocatable"]["time"]
    own = tenant["guarantee"]["time"] - tenant["allocated"]["time"] if tenant is not None else free
    more = device["time_milli"] + min(free, max(0, own))
    advice = []
    if more > max(guaranteed_milli(device) + extra_milli(device), device["time_milli"]):
        advice.append(f"`gpushare grant resize {grant['id']} --time {format_time(min(WHOLE, more))}`")
    elif free > 0 and own <= 0:
        advice.append(f"{grant['tenant']} has no more guaranteed time to give, `gpushare tenants set` changes that")
    if idle:
        advice.append(f"device {idle[0]} has room, start it there with --gpu {idle[0]}")
    if not advice:
        advice.append(f"the rest of device {device['index']} is guaranteed to others, `gpushare plan` says what fits")
    return ", or ".join(advice)


def _unhindered(grant: Json) -> Iterator[str]:
    for device in grant["devices"]:
        index, busy = device["index"], device["busy_milli"]
        if busy >= _FULL_MILLI:
            yield f"it kept device {index} busy for {format_time(busy)} of the last second: there is no more of it"
        elif busy or device["used_milli"]:
            yield (
                f"gpushare does not hold it back: it kept device {index} busy for {format_time(busy)} of the last"
                " second and did not wait for it, so the device waits for the program: look at its data loading and"
                " other work on the CPU (py-spy top --pid PID)"
            )
        else:
            yield (
                f"gpushare does not hold it back: its programs gave device {index} nothing to do in the last second"
                " (py-spy dump --pid PID shows where they are)"
            )


def _time(at_ns: int) -> str:
    return datetime.fromtimestamp(at_ns / 1e9, UTC).astimezone().strftime("%H:%M:%S")


def _span(ns: int) -> str:
    seconds = ns // 1_000_000_000
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"
