"""What the relay knows of attachments, and who may use one: decisions alone, no connections and no clock."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from gpushare.relay import limits
from gpushare.relay.messages import Add, Is
from gpushare.relay.wire import Preamble, Purpose, same

_NOBODYS = bytes(32)


@dataclass(slots=True, eq=False)
class Attachment:
    """One attachment. `since`, `heard`: monotonic times of its addition and of its client's last line. `used`: its
    ticket was. `controlled`: its connection for control lives. `connections`: those for data, `checks`: for checks."""

    told: Add
    since: float
    heard: float
    used: bool = False
    controlled: bool = False
    address: str = ""
    ended_ns: int = 0
    ending: str = ""
    connections: int = 0
    checks: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    rtt_us: int = 0
    rate_bps: int = 0
    checked: str = ""
    silent_s: float = 0.0

    @property
    def id(self) -> str:
        """32 hexadecimal digits."""
        return self.told.id

    @property
    def lives(self) -> bool:
        """It has not ended."""
        return not self.ending

    def as_message(self) -> Is:
        """As the daemon is told."""
        told = self.told
        return Is(
            told.id, told.grant, told.carrier, told.origin, self.address, told.uid, told.link, told.created_ns,
            self.ended_ns, self.ending, self.connections, self.bytes_in, self.bytes_out, self.rtt_us, self.rate_bps,
            self.checked, self.silent_s,
        )  # fmt: skip


class Book:
    """All attachments: those that live, and those that have ended and are not noted."""

    def __init__(self, times: limits.Times) -> None:
        self._times = times
        self._all: dict[str, Attachment] = {}

    def __iter__(self) -> Iterator[Attachment]:
        return iter(list(self._all.values()))

    def get(self, attachment_id: str) -> Attachment | None:
        """None: it is not known, or was noted."""
        return self._all.get(attachment_id)

    def living(self, grant: str | None = None) -> list[Attachment]:
        """Those that have not ended, of one grant or of all."""
        return [each for each in self._all.values() if each.lives and grant in (None, each.told.grant)]

    # Its life.

    def add(self, told: Add, now: float) -> Attachment | None:
        """Knows an attachment from now on. None: it already did."""
        if told.id in self._all:
            return None
        made = self._all[told.id] = Attachment(told, since=now, heard=now)
        return made

    def end(self, which: Attachment, why: str, now: float, now_ns: int) -> None:
        """It has ended: its ticket is worth nothing from now on."""
        which.ending, which.ended_ns = why, now_ns
        which.controlled = False
        if why == "lost":
            which.silent_s = round(now - which.heard, 3)
        ended = [each.id for each in self._all.values() if not each.lives]
        for oldest in ended[: len(ended) - limits.ENDED_MAX]:
            del self._all[oldest]

    def noted(self, attachment_id: str) -> None:
        """Forgets one that has ended."""
        found = self._all.get(attachment_id)
        if found is not None and not found.lives:
            del self._all[attachment_id]

    def late(self, now: float) -> list[tuple[Attachment, str]]:
        """Returns those whose time is over, with why they end."""
        return [(each, self._why(each)) for each in self.living() if self._deadline(each) <= now]

    def deadline(self) -> float | None:
        """When the next one's time is over, if nothing is heard meanwhile."""
        return min(map(self._deadline, self.living()), default=None)

    def _deadline(self, which: Attachment) -> float:
        return which.heard + self._times.silent if which.used else which.since + self._times.first_use

    @staticmethod
    def _why(which: Attachment) -> str:
        return "lost" if which.used else "expired"

    # Who may use it.

    def admit(self, preamble: Preamble, link: str, now: float) -> Attachment | None:
        """Returns the attachment that a connection may be used for from now on; None: it has no right to it. `left` is
        to be called at its end. `link`: `tls` or `plain`."""
        found = self._all.get(preamble.attachment.hex())
        ours = same(hashlib.sha256(preamble.ticket).digest(), found.told.ticket_sha256 if found else _NOBODYS)
        if not ours or found is None or not found.lives or found.told.link != link or self._deadline(found) <= now:
            return None
        match preamble.purpose:
            case Purpose.CONTROL:
                if found.used:
                    return None
                found.used = found.controlled = True
                found.heard = now
            case Purpose.DATA:
                if not found.controlled or found.connections >= limits.DATA_MAX:
                    return None
                found.connections += 1
            case Purpose.CHECK:
                if not found.controlled or found.checks >= limits.CHECKS_MAX:
                    return None
                found.checks += 1
        return found

    @staticmethod
    def left(which: Attachment, purpose: Purpose) -> None:
        """A connection that was admitted has ended."""
        if purpose is Purpose.DATA:
            which.connections -= 1
        elif purpose is Purpose.CHECK:
            which.checks -= 1
