"""The living attachments of this node: what the relay says of them, and their ends.

The relay has the connections, the grants show them, the ledger has the rows; this keeps the three together. The relay
is believed no more than that an attachment lives, what it counted, and how it ended: whose grant it is was written down
when it was made.
"""

import asyncio
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import get_args

from gpushare.api import remote as types
from gpushare.api.types import Name
from gpushare.daemon.accounts import attachments as rows
from gpushare.daemon.grants.transitions import Transitions
from gpushare.daemon.remote.relay import Relay
from gpushare.daemon.state.live import Live
from gpushare.daemon.state.state import State, now_ns
from gpushare.daemon.state.watch import Change
from gpushare.errors import FailedError
from gpushare.policy.remote.link import Watch
from gpushare.relay import messages
from gpushare.text.printable import printable

log = logging.getLogger(__name__)

_WORD_S = 15.0
_COUNT_MAX = (1 << 63) - 1
_ADDRESS_MAX = 64
_ENDINGS: dict[str, types.Ending] = {one: one for one in get_args(types.Ending)}
_CLASSES: dict[str, types.LinkClass] = {one: one for one in get_args(types.LinkClass)}
_LOST = ("lost", "relay")


@dataclass(slots=True)
class One:
    """A living attachment. `tenant`: of its grant. `told`: the relay has said something of it. `why`: how it ends,
    where that was decided here. `adding`: whoever wants it waits for the relay. `waiting`: for the relay's first word
    of it, or its end."""

    attachment: types.Attachment
    tenant: str
    link: Watch
    told: bool = False
    adding: bool = False
    why: types.Ending = ""
    waiting: list["asyncio.Future[None]"] = field(default_factory=list)


class Living:
    """Belongs to the event loop. `relay`: set once it is made."""

    relay: Relay

    def __init__(self, state: State, transitions: Transitions, record: rows.Attachments, most: int) -> None:
        """`record`: takes each as it is now. `most`: how many there may be."""
        self._state, self._transitions, self._record, self._most = state, transitions, record, most
        self._loop = asyncio.get_running_loop()
        self._ones: dict[str, One] = {}
        self._all_told = False

    def __len__(self) -> int:
        """Without those that are being added."""
        return sum(not one.adding for one in self._ones.values())

    def __iter__(self) -> Iterator[types.Attachment]:
        return iter([one.attachment for one in self._ones.values()])

    def adopt(self) -> None:
        """At the daemon's start, once grants are adopted: those that earlier runs left. Which of them live the relay
        says."""
        for row in self._state.ledger.attached():
            for attachment in rows.views([row]):
                one = self._ones[attachment.id] = One(attachment, row.tenant, Watch(attachment.link.checked))
                if (live := self._live(one)) is not None:
                    live.attach(attachment)

    async def add(self, live: Live, attachment: types.Attachment, add: messages.Add, connector: int | None) -> None:
        """A new one: returns once the relay serves it. `connector`: as Add takes it. Raises FailedError where it does
        not."""
        one = self._ones[attachment.id] = One(attachment, live.record.tenant, Watch(), adding=True)
        live.attach(attachment)
        self._write(one)
        self.relay.send(add, connector)
        await self._word(one)
        one.adding = False
        if attachment.ending:
            raise FailedError(f"grant {live.id}: the attachment ended at once ({attachment.ending}): try again")
        self._publish(one, "added", "RemoteAttached")

    async def end(self, attachment: types.Attachment, why: types.Ending, text: str) -> None:
        """Ends one; returns once it has ended. Raises FailedError where the relay does not do it."""
        one = self._ones.get(attachment.id)
        while one is not None and not attachment.ending:
            one.why = one.why or why
            self.relay.send(messages.End(attachment.grant, attachment.id, why, text))
            await self._word(one)

    async def _word(self, one: One) -> None:
        """Waits until the relay says something of it. It does so at once, or has ended, or hangs, and is killed."""
        said: asyncio.Future[None] = self._loop.create_future()
        one.waiting.append(said)
        try:
            async with asyncio.timeout(_WORD_S):
                await said
        except TimeoutError:
            self.relay.hangs()
            raise FailedError("the relay for remote grants hangs, and is started again: try again") from None

    def notice(self, live: Live, text: str) -> None:
        """A line for the users of a grant's attachments."""
        if live.attachments:
            self.relay.send(messages.Notice(live.id, text))

    def ends(self, live: Live, *, by_itself: bool) -> None:
        """Called with a grant that is about to end. `by_itself`: its server has."""
        if not live.attachments:
            return
        why: types.Ending = "server" if by_itself else "released"
        for name in live.attachments if not by_itself else ():
            self._ones[name].why = why
        self.relay.send(messages.End(live.id, "", why, f"grant {live.id} has ended: {live.record.life.reason}"))

    # What the relay says.

    def told(self, now: messages.Is) -> None:
        """An attachment as it is now."""
        one = self._ones.get(now.id) or self._unknown(now)
        if one is None:
            return
        one.told = True
        shown = one.attachment.address, one.attachment.link.checked
        _count(one.attachment, now)
        if now.ending:
            self._end(one, one.why or _ENDINGS.get(now.ending, "relay"), now.ended_ns, now.silent_s)
            return
        self._answer(one)
        if (live := self._live(one)) is not None:
            live.attach(one.attachment)
        self._write(one)
        if shown != (one.attachment.address, one.attachment.link.checked):
            self._publish(one, "changed")
        self._follow(one)

    def _follow(self, one: One) -> None:
        link, before = one.attachment.link, one.link
        if before.checked != link.checked:
            before = Watch(link.checked)
        one.link = before.follow(self._loop.time(), link.rtt_us, link.rate_bps)
        if one.link.slow and not before.slow:
            log.info(
                "attachment %s of grant %s: its link is slow, %d us", _short(one), one.attachment.grant, link.rtt_us
            )
            self._publish(one, "changed", "LinkSlow")

    def _unknown(self, now: messages.Is) -> One | None:
        """One that this run has not made, and the ledger of the last one does not have: it was killed before that was
        written, or had it end already. None: there is nothing more to do."""
        if not re.fullmatch(types.ATTACHMENT_ID, now.id) or self._all_told or len(self._ones) >= 2 * self._most:
            return None
        record = self._state.live(now.grant).record if now.grant in self._state else self._state.ended(now.grant)
        if record is None:
            self.relay.send(messages.Noted(now.id) if now.ending else messages.End(now.grant, now.id, "released"))
            return None
        kind: types.LinkKind = "plain" if now.link == "plain" else "tls"
        attachment = types.Attachment(
            id=now.id,
            grant=now.grant,
            carrier=printable(now.carrier)[:32],
            origin=printable(now.origin)[: types.ORIGIN_MAX],
            address="",
            uid=record.uid,
            link=types.Link(kind=kind),
            created_ns=min(max(0, now.created_ns), now_ns()),
        )
        one = self._ones[now.id] = One(attachment, record.tenant, Watch())
        return one

    def told_all(self) -> None:
        """The relay has told all that it has: of the others there is nothing left."""
        self._all_told = True
        for one in list(self._ones.values()):
            if not one.told:
                self._end(one, one.why or "relay", now_ns())
            elif self._live(one) is None:
                one.why = one.why or "released"
                self.relay.send(messages.End(one.attachment.grant, one.attachment.id, one.why, "the grant has ended"))

    def relay_gone(self) -> None:
        """Nothing is left of any."""
        for one in list(self._ones.values()):
            self._end(one, one.why or "relay", now_ns())

    # What becomes of them.

    def _end(self, one: One, ending: types.Ending, ended_ns: int, silent_s: float = 0.0) -> None:
        attachment = one.attachment
        del self._ones[attachment.id]
        attachment.ending, attachment.connections = ending, 0
        attachment.ended_ns = min(max(attachment.created_ns, ended_ns), now_ns())
        silent = f", after {silent_s:.0f} s of silence" if silent_s else ""
        log.info("attachment %s of grant %s has ended (%s%s)", _short(one), attachment.grant, ending, silent)
        if (live := self._live(one)) is not None:
            live.attachments.pop(attachment.id, None)
        self._write(one)
        self.relay.send(messages.Noted(attachment.id))
        self._publish(one, "removed", "RemoteLost" if ending in _LOST else "RemoteDetached")
        self._answer(one)

    def _answer(self, one: One) -> None:
        waiting, one.waiting = one.waiting, []
        for said in waiting:
            if not said.done():
                said.set_result(None)

    def _live(self, one: One) -> Live | None:
        grant = one.attachment.grant
        return self._state.live(grant) if grant in self._state else None

    def _write(self, one: One) -> None:
        self._record.record(one.attachment, one.tenant)

    def _publish(self, one: One, change: Change, name: Name = "") -> None:
        self._state.watch.publish("attachment", change, lambda _: one.attachment, name)
        if (live := self._live(one)) is not None:
            self._transitions.publish(live, "changed")


def _short(one: One) -> str:
    """Enough of its id for people to tell it from others."""
    return one.attachment.id[:8]


def _count(attachment: types.Attachment, now: messages.Is) -> None:
    """Takes over what the relay counted, within what can be."""

    def number(value: int) -> int:
        return min(max(0, value), _COUNT_MAX)

    attachment.address = printable(now.address)[:_ADDRESS_MAX]
    attachment.connections = number(now.connections)
    attachment.bytes_in, attachment.bytes_out = number(now.bytes_in), number(now.bytes_out)
    attachment.link = types.Link(
        kind=attachment.link.kind,
        rtt_us=number(now.rtt_us),
        rate_bps=number(now.rate_bps),
        checked=_CLASSES.get(now.checked, ""),
    )
