"""What users ask of remote grants: attach a grant, end an attachment, look. What fails on the way is undone."""

import asyncio
import contextlib
import hashlib
import logging
import os
import secrets
import weakref
from collections.abc import AsyncIterator, Iterator

from gpushare.api import remote as types
from gpushare.api.share import Eviction
from gpushare.daemon.accounts import attachments as rows
from gpushare.daemon.grants.grants import Grants
from gpushare.daemon.host.peer import Peer
from gpushare.daemon.remote import attaching
from gpushare.daemon.remote.carriers import Carriers, Serving
from gpushare.daemon.remote.living import Living
from gpushare.daemon.remote.relay import Relay
from gpushare.daemon.remote.sandbox import Sandbox
from gpushare.daemon.remote.servers import Servers
from gpushare.daemon.remote.settings import Settings
from gpushare.daemon.state.live import Live
from gpushare.daemon.state.state import State, now_ns
from gpushare.enforce import server_cgroup
from gpushare.errors import FailedError, NotFoundError, RefusedError, UsageError
from gpushare.relay import messages
from gpushare.relay.wire import FIRST_USE_SECONDS
from gpushare.sandbox.connector import END_SECONDS
from gpushare.text import units

log = logging.getLogger(__name__)

_LATEST = 100
_SINCE_MOST = 1000
"""Ended attachments that one answer has."""
_ENDING_S = END_SECONDS + 1.5
"""How long a kept grant's last server may take to end before the grant is attached again."""


class Desk:
    """Belongs to the event loop."""

    def __init__(
        self, settings: Settings, state: State, grants: Grants, servers: Servers, sandbox: Sandbox, living: Living
    ) -> None:
        self._settings, self._state, self._grants = settings, state, grants
        self._servers, self._sandbox, self._living = servers, sandbox, living
        listen = "" if self._off() else settings.listen
        self._relay = living.relay = Relay(state.layout.run, listen, settings.host, state.timing.heard, living)
        self._carriers = Carriers(settings.carriers, servers.driver())
        self._coming = 0
        """Attachments that are being made."""
        self._turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._changes: dict[str, asyncio.Event] = {}

    def start(self) -> None:
        """After grants are adopted: finds the relay of an earlier daemon, or starts one, where there are to be remote
        grants; else ends what is left of such."""
        self._living.adopt()
        self._relay.start()
        if not self._off() or server_cgroup.existing():  # of which it removes what servers left
            with contextlib.suppress(FailedError):  # who needs it tries again, and is told
                self._sandbox.start()

    def close(self) -> None:
        """The relay goes on if anybody uses it, and servers do."""
        self._relay.close(stop=not len(self._living))
        self._sandbox.close()

    def _off(self) -> str:
        """Why there are no remote grants on this node at all; empty: there are."""
        if not self._settings.listen:
            return "this node takes no programs of other machines: set listen in [remote] of gpushare.toml"
        return "" if os.geteuid() == 0 else "the daemon is not root, and cannot keep carriers' servers apart"

    # What users ask.

    async def facts(self, since_ns: int | None, grant: str | None) -> types.Remote:
        """The answer to GET /v1/remote. `since_ns`: also those that have ended since then, not only the latest.
        `grant`: only its attachments."""
        carriers = await self._carriers.all() if not self._off() else []
        # From here on nothing is awaited: one that lives has not ended meanwhile.
        most = _LATEST if since_ns is None else _SINCE_MOST
        ended = rows.views(self._state.ledger.ended_attachments(most, since_ns or 0, grant or ""))
        living = [one for one in self._living if grant in (None, one.grant)]
        return types.Remote(
            relay=self._relay.address,
            reason=self._off() or self._relay.reason,
            carriers=carriers,
            attachments=[*living, *ended],
            attachments_max=0 if self._off() else self._settings.attachments,
        )

    async def attach(self, peer: Peer, grant_id: str, asked: types.AttachRequest) -> types.Attached:
        """Lets the programs of another machine use a grant, and starts the carrier's server in it unless it has one.

        Raises NotFoundError, ForbiddenError, UsageError; RefusedError where that is not possible now; and FailedError
        where relay or server do not start. Then the grant is as before.
        """
        self._grants.owned(peer, grant_id)
        _check_text(asked)
        if why := self._off():
            raise RefusedError(why)
        memory = self._host_memory(peer, asked)
        carrier, shown = await self._carriers.chosen(asked.carrier, asked.version)
        with self._counted():
            await self._relay.ready()
            async with self._turn(grant_id):
                live = self._grants.owned(peer, grant_id)  # it may have ended meanwhile
                if attaching.is_ending(live):
                    await self._last_server_ended(live)
                if why := attaching.refusal(self._state, live, os.geteuid()):
                    raise RefusedError(f"grant {grant_id} cannot be attached: {why}")
                attachment, ticket = await self._add(peer, live, asked, carrier, memory)
        if (address := self._relay.address) is None:
            raise FailedError("the relay for remote grants has ended, and is started again: try again")
        log.debug("attach grant=%s id=%s uid=%d origin=%r", grant_id, attachment.id, peer.uid, asked.origin)
        return types.Attached(
            id=attachment.id,
            grant=grant_id,
            ticket=ticket.hex(),
            relay=address,
            link=asked.link,
            carrier=shown,
            expires_ns=attachment.created_ns + round(FIRST_USE_SECONDS * 1e9),
        )

    async def detach(self, peer: Peer, grant_id: str, attachment_id: str) -> None:
        """Ends an attachment. Raises NotFoundError and ForbiddenError."""
        live = self._grants.owned(peer, grant_id)
        attachment = live.attachments.get(attachment_id)
        if attachment is None:
            raise NotFoundError(f"grant {grant_id} has no attachment {attachment_id[:40]!r}: it may have ended")
        await self._living.end(attachment, "detached", f"uid {peer.uid} has ended it on the node")

    # How an attachment is made.

    def _host_memory(self, peer: Peer, asked: types.AttachRequest) -> int | None:
        """None: not asked for."""
        if asked.host_memory is None:
            return None
        size, most = units.size_of(asked.host_memory), self._settings.host_memory
        if size > most and not peer.is_root:
            raise RefusedError(
                f"a carrier's server may use {units.format_size(most)} of the node's memory: ask for no more, or an"
                " administrator for another host_memory in [remote] of gpushare.toml"
            )
        return size

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        most = self._settings.attachments
        if len(self._living) + self._coming >= most:
            raise RefusedError(f"this node has {most} attachments, all that it may: wait for the end of one")
        self._coming += 1
        try:
            yield
        finally:
            self._coming -= 1

    @contextlib.asynccontextmanager
    async def _turn(self, grant_id: str) -> AsyncIterator[None]:
        """Attachments of one grant are made one after the other: the first starts its server."""
        lock = self._turns.setdefault(grant_id, asyncio.Lock())
        async with lock:
            yield

    async def _last_server_ended(self, live: Live) -> None:
        """Waits a moment for a kept grant's last server to end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ENDING_S):
                while attaching.is_ending(live):
                    await self._changes.setdefault(live.id, asyncio.Event()).wait()
        self._changes.pop(live.id, None)

    def changed(self, live: Live) -> None:
        """A grant was published."""
        if (event := self._changes.pop(live.id, None)) is not None:
            event.set()

    async def _add(
        self, peer: Peer, live: Live, asked: types.AttachRequest, carrier: Serving, memory: int | None
    ) -> tuple[types.Attachment, bytes]:
        ticket = secrets.token_bytes(32)
        attachment = types.Attachment(
            id=secrets.token_hex(16),
            grant=live.id,
            carrier=carrier.name,
            origin=asked.origin,
            address="",
            uid=peer.uid,
            link=types.Link(kind=asked.link),
            created_ns=now_ns(),
        )
        add = messages.Add(
            attachment.id,
            live.id,
            carrier.name,
            asked.origin,
            peer.uid,
            asked.link,
            hashlib.sha256(ticket).digest(),
            attachment.created_ns,
        )
        if live.attachments:
            self._check_server(live, carrier, memory)
            await self._living.add(live, attachment, add, None)
        else:
            async with self._servers.started(live, carrier, memory or self._settings.host_memory) as connector:
                await self._living.add(live, attachment, add, connector.fileno())
        return attachment, ticket

    def _check_server(self, live: Live, carrier: Serving, memory: int | None) -> None:
        """Raises RefusedError where the server that the grant has is not the one that was asked for."""
        has = live.record.server
        assert has is not None
        if has.carrier != carrier.name:
            raise RefusedError(
                f"grant {live.id} is served by carrier {has.carrier}: name that, or create another grant"
            )
        if memory is not None and memory != has.host_memory:
            raise RefusedError(
                f"the server of grant {live.id} has {units.format_size(has.host_memory)} of host memory already: leave"
                " host_memory out"
            )

    # What becomes of grants and devices.

    def ends(self, live: Live, *, by_itself: bool) -> None:
        """A grant is about to end. `by_itself`: its processes have ended."""
        self._living.ends(live, by_itself=by_itself)

    def drained(self, device: str, text: str) -> None:
        """Tells who uses a device from elsewhere that it takes no new work. `device`: its id; `text`: a line."""
        for live in self._state:
            if any(place.device == device for place in live.record.places):
                self._living.notice(live, f"grant {live.id}: {text}")

    def evicting(self, live: Live, asked: Eviction) -> None:
        """Tells who uses a grant from elsewhere that the node wants memory back."""
        left = max(0, asked.deadline_ns - now_ns()) / 1e9
        ended = ", or it is ended" if asked.max_rung == "kill" else ""
        self._living.notice(live, f"grant {live.id}: {asked.reason}: end it within {left:.0f} s{ended}")


def _check_text(asked: types.AttachRequest) -> None:
    """Raises UsageError."""
    if len(asked.origin) > types.ORIGIN_MAX or not asked.origin.isprintable():
        raise UsageError(f"origin is a host's name, of at most {types.ORIGIN_MAX} printable characters")
