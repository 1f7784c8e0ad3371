"""What the audit found: a bounded record, reported to watchers, the log, metrics and the grants' owners."""

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass

from gpushare.api import findings as wire
from gpushare.daemon.host import logs
from gpushare.daemon.host.readers import Readers
from gpushare.daemon.state.live import Live
from gpushare.daemon.state.state import State, now_ns
from gpushare.daemon.state.watch import Change, Watch
from gpushare.errors import GpushareError

KEPT = 256
_OPEN_MAX = 4096
_REPORTED_PER_GRANT = 8
"""Lasting findings of a grant that are reported. Further processes that a tenant forks are stopped like the first, but
neither published nor logged."""


@dataclass(frozen=True, slots=True)
class Key:
    """What a finding is about. `started`: as in MemberRecord."""

    kind: wire.FindingKind
    grant: str
    pid: int
    started: int


def finding(
    state: State,
    key: Key,
    device: int,
    live: Live | None = None,
    *,
    memory_bytes: int | None = None,
    busy_ns: int = 0,
    act: wire.Act = "told",
    note: str = "",
) -> wire.Finding:
    """A new finding; its number and command line are not known yet. `device`: by number. `act`: what has been done."""
    return wire.Finding(
        seq=0,
        kind=key.kind,
        at_ns=now_ns(),
        device=device,
        device_id=state.devices[device].id,
        grant=key.grant or None,
        tenant=live.record.tenant if live is not None else None,
        pid=key.pid,
        command="",
        memory_bytes=memory_bytes,
        busy_ns=busy_ns,
        act=act,
        note=note,
    )


class Findings:
    """Belongs to the event loop."""

    def __init__(self, watch: Watch, readers: Readers) -> None:
        self._watch, self._readers = watch, readers
        self._kept: deque[wire.Finding] = deque(maxlen=KEPT)
        self._open: dict[Key, wire.Finding] = {}
        self._lasting: Counter[str] = Counter()
        """Number of lasting findings by grant."""
        self._reported: set[int] = set()
        """Sequence numbers of the lasting findings that are reported."""
        self._total = 0
        self.counts: Counter[wire.FindingKind] = Counter()
        self._seldom = logs.Seldom()
        self._asking: asyncio.Lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def __contains__(self, key: Key) -> bool:
        return key in self._open

    def __getitem__(self, key: Key) -> wire.Finding:
        return self._open[key]

    def lasting(self) -> list[Key]:
        """Keys of all lasting findings."""
        return list(self._open)

    @property
    def full(self) -> bool:
        """Whether no more findings are taken."""
        return len(self._open) >= _OPEN_MAX

    def of_grant(self, grant: str) -> Iterator[wire.Finding]:
        """The lasting findings of one grant."""
        return (
            (found for key, found in self._open.items() if key.grant == grant) if grant in self._lasting else iter(())
        )

    def is_reported(self, key: Key) -> bool:
        """Whether a lasting finding is among those of its grant that are reported."""
        return self._open[key].seq in self._reported

    def count(self, kind: wire.FindingKind) -> int:
        """Number of lasting findings of a kind."""
        return sum(key.kind == kind for key in self._open)

    def add(self, key: Key, found: wire.Finding) -> None:
        """Adds a new finding and sets its `seq`."""
        self._total += 1
        found.seq = self._total
        self.counts[key.kind] += 1
        self._open[key] = found
        self._lasting[key.grant] += 1
        if self._lasting[key.grant] > _REPORTED_PER_GRANT:
            return
        self._reported.add(found.seq)
        self._kept.append(found)
        self._publish(found, "added")
        task = asyncio.get_running_loop().create_task(self._name(key, found))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _name(self, key: Key, found: wire.Finding) -> None:
        """Completes a finding with the command line, which the process can make slow to read, and logs it."""
        if key.pid and not found.command:
            with contextlib.suppress(GpushareError):
                async with self._asking:  # one at a time: these readers also look up users
                    found.command = await self._readers.command(key.pid)
            self._publish(found, "changed")
        whom = f" of grant {found.grant}" if found.grant else ""
        cause = f"finding {found.kind} {found.tenant}"
        self._seldom.warning(
            cause,
            "finding %d: %s: %s on device %d: %s%s",
            found.seq,
            found.kind,
            f"process {found.pid}{whom} ({found.command or 'command line not known'})" if found.pid else "no process",
            found.device,
            found.act,
            f"; {found.note}" if found.note else "",
        )

    def changed(self, key: Key) -> None:
        """Publishes a finding whose act has changed."""
        self._publish(self._open[key], "changed")

    def end(self, key: Key, outcome: wire.Outcome) -> None:
        """Ends a finding."""
        found = self._open.pop(key)
        self._lasting[key.grant] -= 1
        if not self._lasting[key.grant]:
            del self._lasting[key.grant]
        found.outcome, found.ended_ns = outcome, now_ns()
        self._publish(found, "removed")
        self._reported.discard(found.seq)

    def _publish(self, found: wire.Finding, change: Change) -> None:
        if found.seq in self._reported:
            self._watch.publish("finding", change, lambda _: found)

    def shown(self) -> wire.Findings:
        """Returns the answer to GET /v1/findings."""
        return wire.Findings(
            epoch=self._watch.epoch, total=self._total, open=len(self._open), findings=list(self._kept)
        )

    def close(self) -> None:
        """Stops asking for command lines."""
        for task in self._tasks:
            task.cancel()
