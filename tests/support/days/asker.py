"""Who asks for a grant and waits, as gpushare.client does."""

from typing import Any

from days.clock import S

from gpushare.api.types import GrantRequest
from gpushare.errors import GpushareError, LaterError, MakingRoomError

_AWAY_NS = S // 10


class Asker:
    """`said`: the last refusal. `done`: it has a grant, or has given up. `insists`: it asks again where it was refused,
    too."""

    def __init__(self, day: Any, request: GrantRequest, name: str, patience_ns: int, *, insists: bool = False) -> None:
        self._insists = insists
        self._day, self.request, self._name = day, request, name
        self._until_ns = day.clock.now_ns + patience_ns
        self.said: GpushareError | None = None
        self.done = False
        day.note(f"{self._name} asks: {request}")
        day.askers.append(self)

    def ask(self) -> None:
        day = self._day
        if self.done:
            return
        try:
            live = day.node.create(self.request, self._name)
        except LaterError as later:
            self._again(later)
        except GpushareError as refusal:
            self.said = refusal
            if self._insists:
                day.clock.later(S, self.ask)
            else:
                self.end()
        else:
            if live is not None:
                self.end()
                day.begins(live, self.request)
            else:
                self._again(None)

    def _again(self, later: LaterError | None) -> None:
        day = self._day
        if self.said is None or str(later) != str(self.said):
            day.note(f"{self._name}: {later}")
        self.said = later
        if day.clock.now_ns >= self._until_ns:
            self.end()
            return
        estimate = later.estimate_seconds if isinstance(later, MakingRoomError) else None
        day.clock.later(int(_pause(estimate) * S), self.ask)

    def end(self) -> None:
        """It asks no more."""
        self.done = True
        self._day.askers.remove(self)
        self._day.judge.asked_ns = self._day.clock.now_ns
        self._day.note(f"{self._name} is done: {self.said}")


def _pause(estimate: float | None) -> float:
    """As Patience.pause."""
    return 0.1 if estimate is None else min(max(estimate, 0.05), 2.0)
