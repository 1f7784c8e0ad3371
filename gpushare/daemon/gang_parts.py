"""What of gangs across nodes this node has: their parts, those that are over and only remembered among them, as the
ledger keeps them."""

import logging
import time
from collections.abc import Iterator

import msgspec
from msgspec import Struct

from gpushare.api.gangs import GangPart
from gpushare.api.types import GrantRequest
from gpushare.arbiter import Arbiter
from gpushare.daemon import placement
from gpushare.daemon.state import PartOf, State
from gpushare.daemon.view import grant_view
from gpushare.ledger.ledger import Ledger
from gpushare.policy import preparation
from gpushare.policy.preparation import Moment, Preparation

log = logging.getLogger(__name__)

REMEMBERED_MAX = 1024
"""Parts of a user that are over: beyond that the oldest are forgotten."""

Key = tuple[int, PartOf]
"""Whose, and which: gangs of different users have nothing to do with each other, whatever they are called."""


class PartRecord(Struct, kw_only=True):
    """One part. `grants`: ids, in the order of the `requests`; none of both where it was aborted before it was
    prepared."""

    uid: int
    of: PartOf
    requests: list[GrantRequest]
    ttl_seconds: int
    grants: list[str]
    life: Preparation

    @property
    def key(self) -> Key:
        """Unlike that of any other part."""
        return self.uid, self.of

    @property
    def name(self) -> str:
        """In words."""
        return f"part {self.of.part} of gang {self.of.gang}"


class GangParts:
    """All parts, in memory and in the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._parts: dict[Key, PartRecord] = {}
        self._of_grant: dict[str, PartRecord] = {}
        self._over: dict[int, dict[Key, None]] = {}
        """By user; the first was over first."""

    def read(self) -> None:
        """Takes in what earlier runs wrote. A row that cannot be used is set aside."""
        for name, text in self._ledger.parts().items():
            try:
                part = msgspec.json.decode(text, type=PartRecord)
            except Exception as error:  # whatever is wrong with it concerns no other
                log.exception("a part of a gang is lost: %s", name)
                self._ledger.set_part_aside(name, str(error))
            else:
                self._take(part)

    def now(self) -> Moment:
        """This moment."""
        return Moment(self._ledger.boot, time.clock_gettime_ns(time.CLOCK_BOOTTIME), time.time_ns())

    def __iter__(self) -> Iterator[PartRecord]:
        return iter(list(self._parts.values()))

    def get(self, key: Key) -> PartRecord | None:
        """None: it was never heard of, or is forgotten."""
        return self._parts.get(key)

    def of_grant(self, grant: str) -> PartRecord | None:
        """Whose grant it is."""
        return self._of_grant.get(grant)

    def put(self, part: PartRecord) -> None:
        """A part that is new or has changed."""
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
    stands = placement.standing(state)
    lives = [state.live(grant) for grant in part.grants if grant in state]
    prepared = part.life.stage is preparation.Stage.PREPARED and part.life.until is not None
    return GangPart(
        gang=part.of.gang,
        part=part.of.part,
        uid=part.uid,
        phase=part.life.stage.value,
        reason=part.life.reason,
        grant_ids=part.grants,
        grants=[grant_view(state, live.record, live, arbiter, stands) for live in lives],
        ttl_seconds=part.ttl_seconds,
        expires_ns=part.life.until.wall_ns if prepared and part.life.until is not None else None,
    )
