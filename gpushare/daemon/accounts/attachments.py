"""Attachments as the ledger has them, and in the story of their grant."""

import logging
from collections import Counter, deque
from collections.abc import Iterable
from typing import Literal

import msgspec

from gpushare.api.remote import Attachment
from gpushare.api.why import Decision
from gpushare.daemon.state.state import now_ns
from gpushare.ledger.entries import AttachmentRow
from gpushare.ledger.ledger import Ledger
from gpushare.text import links

log = logging.getLogger(__name__)

Way = Literal["in", "out"]
_ENDED_KEPT = 1024


class Attachments:
    """Writes attachments to the ledger, and counts for the metrics. `bytes`: by tenant and way, those that came and
    went in this run of the daemon; `ended`: by how."""

    def __init__(self, ledger: Ledger) -> None:
        self.bytes: Counter[tuple[str, Way]] = Counter()
        self.ended: Counter[str] = Counter()
        self._ledger, self._began_ns = ledger, now_ns()
        self._counted: dict[str, tuple[int, int]] = {}
        self._over: deque[str] = deque(maxlen=_ENDED_KEPT)
        """Ids of the latest that have ended."""

    def record(self, attachment: Attachment, tenant: str) -> None:
        """Takes an attachment of a grant of this tenant as it is now; its end as often as it is told."""
        self._ledger.attachment(row(attachment, tenant))
        if attachment.id in self._over:
            return
        now = attachment.bytes_in, attachment.bytes_out
        # What an earlier run of the daemon has counted is no part of this one's.
        before = self._counted.get(attachment.id, (0, 0) if attachment.created_ns >= self._began_ns else now)
        self.bytes[tenant, "in"] += max(0, now[0] - before[0])
        self.bytes[tenant, "out"] += max(0, now[1] - before[1])
        self._counted[attachment.id] = now
        if attachment.ending:
            self.ended[attachment.ending] += 1
            self._counted.pop(attachment.id)
            self._over.append(attachment.id)


def row(attachment: Attachment, tenant: str) -> AttachmentRow:
    """An attachment of a grant of this tenant, as it is at this moment."""
    return AttachmentRow(
        attachment=attachment.id,
        grant_id=attachment.grant,
        tenant=tenant,
        carrier=attachment.carrier,
        origin=attachment.origin,
        address=attachment.address,
        uid=attachment.uid,
        link=attachment.link.kind,
        checked=attachment.link.checked,
        from_ns=attachment.created_ns,
        to_ns=now_ns() if attachment.ended_ns is None else attachment.ended_ns,
        ending=attachment.ending,
        bytes_in=attachment.bytes_in,
        bytes_out=attachment.bytes_out,
        rtt_us=attachment.link.rtt_us,
    )


def views(rows: Iterable[AttachmentRow]) -> list[Attachment]:
    """Rows as the API shows them, without those that the ledger cannot have been given."""
    found = []
    for row in rows:
        told = {
            "id": row.attachment,
            "grant": row.grant_id,
            "carrier": row.carrier,
            "origin": row.origin,
            "address": row.address,
            "uid": row.uid,
            "link": {"kind": row.link, "rtt_us": row.rtt_us, "checked": row.checked},
            "created_ns": row.from_ns,
            "ended_ns": row.to_ns if row.ending else None,
            "ending": row.ending,
            "bytes_in": row.bytes_in,
            "bytes_out": row.bytes_out,
        }
        try:
            found.append(msgspec.convert(told, Attachment))
        except msgspec.ValidationError as error:
            log.warning("ledger: attachment %.40r cannot be shown: %s", row.attachment, error)
    return found


def decisions(attachment: Attachment) -> list[Decision]:
    """That it began and, where it has, that it ended."""
    told = msgspec.to_builtins(attachment)
    began = Decision(
        at_ns=attachment.created_ns,
        what="attached",
        rule=attachment.link.checked or "attached",
        text=links.attached(told),
        numbers={"rtt_us": attachment.link.rtt_us},
    )
    if attachment.ended_ns is None:
        return [began]
    numbers = {"bytes_in": attachment.bytes_in, "bytes_out": attachment.bytes_out}
    ending, text = attachment.ending, links.detached(told)
    return [began, Decision(at_ns=attachment.ended_ns, what="detached", rule=ending, text=text, numbers=numbers)]
