"""What becomes of a relay's messages in the daemon: also of one that strangers have taken over."""

import asyncio
import itertools
import time

import pytest

from gpushare.api.remote import Attachment, Link
from gpushare.daemon.remote.living import Living
from gpushare.errors import FailedError
from gpushare.relay import messages

NOW = time.time_ns()
ID = "ab" * 16


class Grant:
    def __init__(self, name):
        self.id, self.attachments = name, {}
        self.record = self
        self.tenant, self.uid = "team", 1000

    def attach(self, attachment):
        self.attachments[attachment.id] = attachment


class Node:
    """All that living attachments need of a daemon. `said`: to the relay; `events`: published; `rows`: recorded."""

    def __init__(self, most=2):
        self.said, self.events, self.rows, self.grants = [], [], [], {"g-1": Grant("g-1")}
        self.watch = self.ledger = self.relay = self
        self.known_ended, self.left = {}, []
        self.living = Living(self, self, self, most)
        self.living.relay = self

    def __contains__(self, grant):
        return grant in self.grants

    def live(self, grant):
        return self.grants[grant]

    def ended(self, grant):
        return self.known_ended.get(grant)

    def attached(self):
        return self.left

    def publish(self, kind, change, build=None, name=""):
        if kind == "attachment":
            self.events.append((change, name, build(1).ending))

    def record(self, attachment, tenant):
        self.rows.append((attachment.id, attachment.ending, tenant))

    def send(self, message, descriptor=None):
        self.said.append(message)

    async def add(self, attachment_id=ID, grant="g-1"):
        """One that the relay has acknowledged."""
        made = Attachment(
            id=attachment_id, grant=grant, carrier="c", origin="laptop", address="", uid=7, link=Link(kind="tls"),
            created_ns=NOW,
        )  # fmt: skip
        adding = asyncio.create_task(self.living.add(self.grants[grant], made, attachment_id, None))
        await asyncio.sleep(0)
        self.living.told(now(attachment_id, grant))
        await adding
        return made


def now(attachment_id=ID, grant="g-1", ending="", **more):
    usual = {
        "carrier": "other", "origin": "liar", "address": "10.0.0.1", "uid": 0, "link": "plain", "created_ns": NOW,
        "ended_ns": NOW + 5 if ending else 0, "connections": 1, "bytes_in": 10, "bytes_out": 20, "rtt_us": 40,
        "rate_bps": 8, "checked": "good",
    }  # fmt: skip
    return messages.Is(id=attachment_id, grant=grant, ending=ending, **{**usual, **more})


def played(test):
    """Runs a coroutine with a Node."""

    def run():
        async def play():
            await test(Node())

        asyncio.run(play())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@played
async def test_it_says_what_it_counted_and_not_whose_it_is(node):
    made = await node.add()
    assert (made.uid, made.origin, made.carrier, made.link.kind) == (7, "laptop", "c", "tls")
    assert (made.address, made.bytes_in, made.link.rtt_us, made.link.checked) == ("10.0.0.1", 10, 40, "good")
    assert node.grants["g-1"].attachments == {ID: made}
    node.living.told(now(ending="expired"))
    assert (made.ending, made.ended_ns, made.connections) == ("expired", NOW + 5, 0)
    assert node.grants["g-1"].attachments == {} and len(node.living) == 0
    assert node.said[-1] == messages.Noted(ID)
    assert node.rows[-1] == (ID, "expired", "team")
    assert [name for _, name, _ in node.events if name] == ["RemoteAttached", "RemoteDetached"]


@played
async def test_numbers_and_words_that_cannot_be(node):
    made = await node.add()
    node.living.told(now(bytes_in=-5, bytes_out=1 << 64, rtt_us=-1, checked="best", address="\x1b[2J" * 99))
    assert (made.bytes_in, made.bytes_out, made.link.rtt_us, made.link.checked) == (0, (1 << 63) - 1, 0, "")
    assert made.address.isprintable() and len(made.address) <= 64
    node.living.told(now(ending="bribed", ended_ns=1 << 62))
    assert made.ending == "relay"
    assert made.created_ns <= made.ended_ns <= time.time_ns()


@played
async def test_none_that_the_node_has_not_made(node):
    node.living.told_all()
    for attachment_id, grant in (("cd" * 16, "g-1"), ("../..", "g-1"), ("ef" * 16, "g-none")):
        for ending in ("", "detached"):
            node.living.told(now(attachment_id, grant, ending))
    assert (len(node.living), node.rows, node.events, node.grants["g-1"].attachments) == (0, [], [], {})


@played
async def test_at_first_it_tells_of_those_that_the_ledger_has_lost(node):
    """A daemon was killed before its ledger had them: a few, of grants that there are or were, as their owners'."""
    node.known_ended["g-0"] = Grant("g-0")
    node.living.told(now("01" * 16))
    node.living.told(now("02" * 16, "g-0", "lost"))
    node.living.told(now("03" * 16, "g-none", "lost"))
    node.living.told(now("04" * 16, "g-none"))
    assert [(one.id, one.uid) for one in node.living] == [("01" * 16, 1000)]
    assert node.rows[-1] == ("02" * 16, "lost", "team")
    assert messages.Noted("03" * 16) in node.said, "nothing is known of its grant"
    assert messages.End("g-none", "04" * 16, "released") in node.said
    for number in range(5, 99):
        node.living.told(now(f"{number:032x}"))
    assert len(node.living) <= 4


@played
async def test_what_it_does_not_tell_has_ended_with_an_earlier_one(node):
    lives, gone = await node.add("01" * 16), await node.add("02" * 16)
    for one in node.living._ones.values():
        one.told = one.attachment is lives
    node.living.told_all()
    assert (lives.ending, gone.ending) == ("", "relay")
    assert node.events[-1] == ("removed", "RemoteLost", "relay")


@played
async def test_a_grant_that_has_ended_ends_those_that_are_told(node):
    await node.add()
    del node.grants["g-1"]
    node.living.told_all()
    assert isinstance(node.said[-1], messages.End) and node.said[-1].why == "released"
    node.living.told(now(ending="detached"))
    assert node.rows[-1] == (ID, "released", "team"), "as it was decided here"


@played
async def test_an_attachment_that_ends_while_it_is_made(node):
    adding = asyncio.create_task(
        node.living.add(
            node.grants["g-1"],
            made := Attachment(
                id=ID, grant="g-1", carrier="c", origin="", address="", uid=7, link=Link(kind="tls"), created_ns=NOW
            ),
            ID,
            None,
        )
    )
    await asyncio.sleep(0)
    node.living.relay_gone()
    with pytest.raises(FailedError, match="ended at once"):
        await adding
    assert made.ending == "relay" and "RemoteAttached" not in [name for _, name, _ in node.events]


@played
async def test_a_link_that_is_slow_for_ten_seconds_is_said_once(node):
    await node.add()
    seconds = itertools.count()
    node.living._loop = type("Clock", (), {"time": lambda _: next(seconds)})()

    def slow():
        return [name for _, name, _ in node.events].count("LinkSlow")

    for _ in range(10):
        node.living.told(now(rtt_us=90))
    assert slow() == 0
    for _ in range(10):
        node.living.told(now(rtt_us=90))
    assert slow() == 1
    node.living.told(now(rtt_us=40))
    for _ in range(12):
        node.living.told(now(rtt_us=90))
    assert slow() == 2
