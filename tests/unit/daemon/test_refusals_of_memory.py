"""When refused calls become events: for real processes see tests/daemon/grants/test_why_decisions.py."""

from types import SimpleNamespace

from gpushare.api.share import MemoryRefused
from gpushare.binding.page_words import Refusal, Refused
from gpushare.daemon.accounts.refusals import MemoryRefusals
from gpushare.daemon.state.decisions import Decisions
from gpushare.daemon.state.records import MemberRecord, Refusals


def test_what_was_told_before_the_daemon_was_restarted_is_not_told_again():
    last = MemoryRefused(at_ns=1, asked_bytes=9, left_bytes=2, limit_bytes=8, why="limit")
    said = Refused(calls=4, ordinal=0, asked_bytes=7, left_bytes=3, why=Refusal.LIMIT)
    usage = SimpleNamespace(refusals=lambda _: said.calls, refused=lambda _: said)
    member = MemberRecord(pid=2, started=1, slot=0, generation=1, refusals=4)
    record = SimpleNamespace(
        members=[member],
        places=[SimpleNamespace(memory_bytes=8, index=0)],
        refused=[Refusals(ordinal=0, calls=4, last=last)],
    )
    live, decisions = SimpleNamespace(id="g-1", record=record, usage=usage, handle=7), Decisions()
    events = []
    arbiter = SimpleNamespace(refused=lambda handle, device, found: events.append(found.calls))
    refusals = MemoryRefusals(SimpleNamespace(decisions=decisions), arbiter)
    assert not refusals.look(live) and events == [] and decisions.of("g-1") == []
    said = Refused(calls=6, ordinal=0, asked_bytes=7, left_bytes=3, why=Refusal.LIMIT)
    assert refusals.look(live) and events == [2] and not refusals.look(live)
    assert [one.numbers["calls"] for one in decisions.of("g-1")] == [6]
