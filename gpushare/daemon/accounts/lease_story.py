"""The arbiter's events about one grant as decisions in words: what it was given, what was taken from it and for it."""

from collections.abc import Iterable, Sequence

from gpushare.api.events import LeaseEvent
from gpushare.api.why import Decision
from gpushare.text import rules
from gpushare.text.overview import guarantee
from gpushare.text.units import format_time


def decisions(grant: str, events: Sequence[LeaseEvent]) -> list[Decision]:
    """Returns decisions in the order of `events`, oldest first."""
    return [found for number, event in enumerate(events) if (found := _one(grant, event, events[number + 1 :]))]


def _one(grant: str, event: LeaseEvent, later: Sequence[LeaseEvent]) -> Decision | None:
    if event.grant == grant:
        match event.kind:
            case "lease":
                return _served(event)
            case "revoke" if event.rule in rules.OWN_ACCORD:
                return _decision(event, "gave_up", f"gave device {event.device} back: {rules.LEASE[event.rule]}")
            case "revoke":
                return _taken(event, _until_done(event, later))
            case "left":
                return _decision(
                    event, "waited", f"stopped waiting for device {event.device} after {_ms(event.wait_ns)}"
                )
            case "late":
                return _decision(
                    event, "late", f"still ran on device {event.device} {_ms(event.reclaim_ns)} after that"
                )
            case "refused":
                return None  # the daemon's own decisions say it (state/decisions.py)
            case "lie":
                claim = f"process {event.pid} says {event.word} = {event.value}, which cannot be"
                return _decision(event, "lie", f"{claim}: charged by the most it could have used until it has ended")
        return None
    if event.kind == "revoke" and event.other == grant:
        return _took(event, _until_done(event, later))
    return None


def _served(event: LeaseEvent) -> Decision:
    text = f"served on device {event.device} after {_ms(event.wait_ns)}"
    if event.reclaim_ns and event.other is not None:
        text += f", {_ms(event.reclaim_ns)} of them for what {_name(event.other, event.other_tenant)} still ran"
    how = {"guarantee": "out of its guarantee", "slack": "out of its guarantee", "surplus": "borrowed"}
    return _decision(event, "served", f"{text} ({how.get(event.level, event.level)}{_numbers(event)})")


def _taken(event: LeaseEvent, reclaim_ns: int | None) -> Decision:
    what = "borrowed time" if event.level == "surplus" else "its time"
    after = f" after {_ms(reclaim_ns)}" if reclaim_ns is not None else ""
    why = rules.TAKEN.get(event.rule, event.rule).format(other=_name(event.other, event.other_tenant))
    text = f"{what} on device {event.device} taken{after}: {why} ({_rule(event)})"
    return _decision(event, "taken", text, reclaim_ns)


def _took(event: LeaseEvent, reclaim_ns: int | None) -> Decision:
    whose = _name(event.grant, event.tenant)
    after = f" after {_ms(reclaim_ns)}" if reclaim_ns is not None else ""
    why = rules.TAKEN.get(event.rule, event.rule).format(other="this grant")
    found = _decision(event, "took", f"device {event.device} taken from {whose}{after}: {why} ({_rule(event)})")
    found.other, found.other_tenant = event.grant, event.tenant
    if reclaim_ns is not None:
        found.numbers["reclaim_ns"] = reclaim_ns
    return found


def _until_done(revoked: LeaseEvent, later: Iterable[LeaseEvent]) -> int | None:
    """How long the work of the revoked grant ran on; None: it was idle, or that is not known yet."""
    for event in later:
        if (event.grant, event.device) == (revoked.grant, revoked.device):
            if event.kind in ("drained", "handover"):
                return event.reclaim_ns
            if event.kind == "lease":
                return None
    return None


def _rule(event: LeaseEvent) -> str:
    return f"{numbers}; rule {event.rule}" if (numbers := _numbers(event).lstrip(", ")) else f"rule {event.rule}"


def _numbers(event: LeaseEvent) -> str:
    if not event.guarantee_milli + event.extra_milli:
        return ""
    return f", {guarantee(event.guarantee_milli, event.extra_milli)}, had {format_time(event.had_milli)}"


def _name(grant: str | None, tenant: str | None) -> str:
    return f"{grant} of {tenant}" if grant else "another grant"


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.1f} ms"


def _decision(event: LeaseEvent, what: str, text: str, reclaim_ns: int | None = None) -> Decision:
    numbers = {"guarantee_milli": event.guarantee_milli, "extra_milli": event.extra_milli}
    numbers |= {"had_milli": event.had_milli, "wait_ns": event.wait_ns}
    numbers["reclaim_ns"] = event.reclaim_ns if reclaim_ns is None else reclaim_ns
    return Decision(
        at_ns=event.at_ns,
        what=what,  # type: ignore[arg-type]
        rule=event.rule,
        text=text,
        device=event.device,
        other=event.other,
        other_tenant=event.other_tenant,
        numbers={name: value for name, value in numbers.items() if value},
    )
