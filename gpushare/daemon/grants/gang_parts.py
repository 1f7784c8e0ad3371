"""This node's parts of gangs across nodes, as the ledger keeps them, including ended ones that are only remembered."""

import logging
import time
from collections.abc import Iterator

import msgspec
from msgspec import Struct

from gpushare.api.gangs import GangPart
from gpushare.api.types import GrantRequest
from gpushare.binding.arbiter import Arbiter
from gpushare.daemon.grants.view import grant_view
from gpushare.daemon.state import placement
from gpushare.daemon.state.records import PartOf
from gpushare.daemon.state.state import State
from gpushare.ledger.ledger import Ledger
from gpushare.policy.grants import preparation
from gpushare.policy.grants.preparation import Moment, Preparation

log = logging.getLogger(__name__)

REMEMBERED_MAX = 1024
"""Ended parts that are remembered per user: beyond that the oldest are forgotten."""

Key = tuple[int, PartOf]
"""The owner's uid, and the part: gangs of different users are unrelated, even under the same name."""


class PartRecord(Struct, kw_only=True):
    """One part. `grants`: ids, in the order of `requests`; both are empty where it was aborted before it was
    prepared."""

    uid: int
    of: PartOf
    requests: list[GrantRequest]
    ttl_seconds: int
    grants: list[str]
    life: Preparation

    @property
    def key(self) -> Key:
        """Unique among the parts."""
        return self.uid, self.of

    @property
    def name(self) -> str:
        """The part's name in messages."""
        return f"part {self.of.part} of gang {self.of.gang}"


class GangParts:
    """All parts, in memory and in the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._parts: dict[Key, PartRecord] = {}
        self._of_grant: dict[str, PartRecord] = {}
        self._over: dict[int, dict[Key, None]] = {}
        """Ended parts by user, the one that ended first is first."""

    def read(self) -> None:
        """Reads what earlier runs wrote. A row that cannot be used is set aside."""
        for name, text in self._ledger.parts().items():
            try:
                part = msgspec.json.decode(text, type=PartRecord)
            except Exception as error:  # a bad row affects no other
                log.exception("a part of a gang is lost: %s", name)
                self._ledger.set_part_aside(name, str(error))
            else:
                self._take(part)

    def now(self) -> Moment:
        """The present moment."""
        return Moment(self._ledger.boot, time.clock_gettime_ns(time.CLOCK_BOOTTIME), time.time_ns())

    def __iter__(self) -> Iterator[PartRecord]:
        return iter(list(self._parts.values()))

    def get(self, key: Key) -> PartRecord | None:
        """The part; None: unknown, or forgotten."""
        return self._parts.get(key)

    def of_grant(self, grant: str) -> PartRecord | None:
        """The part that the grant belongs to; None: none, or it has ended."""
        return self._of_grant.get(grant)

    def put(self, part: PartRecord) -> None:
        """Saves a part that is new or has changed."""
        self._take(part)
        self._ledger.save_part(_row(part.key), msgspec.json.encode(part).decode())
        self._forget(part.uid)

    def _take(self, part: PartRecord) -> None:
        self._parts[part.key] = part
        for grant in part.grants:
            if part.life.over:
                self._of_grant.pop(grant, None)
            else:
                self._of_grant[grant] = part
        if part.life.over:
            self._over.setdefault(part.uid, {})[part.key] = None

    def _forget(self, uid: int) -> None:
        over, now = self._over.get(uid, {}), self.now()
        while over:
            oldest = next(iter(over))
            if len(over) <= REMEMBERED_MAX and not preparation.forgotten(self._parts[oldest].life, now):
                return
            del over[oldest], self._parts[oldest]
            self._ledger.save_part(_row(oldest), "")


def _row(key: Key) -> str:
    return msgspec.json.encode(key).decode()


def part_view(part: PartRecord, state: State, arbiter: Arbiter) -> GangPart:
    """A part on the wire."""
    standing = placement.standing(state)
    lives = [state.live(grant) for grant in part.grants if grant in state]
    prepared = part.life.stage is preparation.Stage.PREPARED and part.life.until is not None
    return GangPart(
        gang=part.of.gang,
        part=part.of.part,
        uid=part.uid,
        phase=part.life.stage.value,
        reason=part.life.reason,
        grant_ids=part.grants,
        grants=[grant_view(state, live.record, live, arbiter, standing) for live in lives],
        ttl_seconds=part.ttl_seconds,
        expires_ns=part.life.until.wall_ns if prepared and part.life.until is not None else None,
    )
