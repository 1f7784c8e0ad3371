"""What the programs of one grant say of its memory, over grant.sock: that they are idle, that it may leave now, or that
they need it back. A tenant that says so all the time gets no more than its own grant moved, and that a few times."""

import logging
import time
from collections.abc import Callable

from gpushare.binding import wire
from gpushare.binding.wire import JoinError, Yield
from gpushare.daemon.host.peer import Peer
from gpushare.daemon.workloads.door import Door
from gpushare.errors import GpushareError

log = logging.getLogger(__name__)

_MOVES, _PER_SECOND = 8, 2
"""How often a grant's programs may have its memory moved: so many times at once, then so often. Each is written to the
ledger."""

Admit = Callable[[Peer], tuple[JoinError, str]]
Said = Callable[[Yield], None]


class YieldDesk:
    """One grant's."""

    def __init__(self, door: Door, admit: Admit, said: Said) -> None:
        """`admit`: whether a process is the grant's. `said`: acts on it; raises GpushareError with why it does not."""
        self._door, self._admit, self._said = door, admit, said
        self._credit, self._credited_at = float(_MOVES), time.monotonic()

    def asked(self, connection: int, who: Peer, what: Yield) -> None:
        """Handles what a process says, which need not have joined: a shell says it for the program that it started."""
        try:
            error, text = self._answer(who, what)
        except GpushareError as refusal:
            error, text = JoinError.REFUSED, str(refusal)
        except Exception:
            log.exception("pid %d could not say %s", who.pid, what.name)
            error, text = JoinError.REFUSED, "internal error: the daemon's log says which"
        self._door.answer(connection, wire.reply(error, text))

    def _answer(self, who: Peer, what: Yield) -> tuple[JoinError, str]:
        if who.pid <= 0:
            return JoinError.REFUSED, "the process is in a pid namespace that the daemon cannot see"
        error, text = self._admit(who)
        if error != JoinError.OK:
            return error, text
        if what is not Yield.IDLE and not self._may_move():
            return JoinError.REFUSED, "it has its memory moved too often: ask again in a second"
        self._said(what)
        return JoinError.OK, ""

    def _may_move(self) -> bool:
        now = time.monotonic()
        self._credit = min(_MOVES, self._credit + (now - self._credited_at) * _PER_SECOND)
        self._credited_at = now
        if self._credit < 1:
            return False
        self._credit -= 1
        return True
