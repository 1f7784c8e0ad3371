"""The pages of a grant on the days: what the daemon writes, and what programs say. They outlive the daemon."""

from collections.abc import Callable
from typing import Protocol

from gpushare.binding.page_words import Residency, SlotUsage
from gpushare.daemon.residency import reports

NOTHING = SlotUsage(0, 0, 0, 0, 0, 0, 0, 0, 0, dependent=False)


class Process(Protocol):
    """A process of the grant. `said`: its slot."""

    said: SlotUsage
    alive: bool

    def word_changed(self) -> None:
        """The residency word is another."""


class Limits:
    """A grant's limits page: it outlives the daemon, and programs see it."""

    def __init__(self, effect: Callable[[], None]) -> None:
        self._effect = effect
        self.word, self.kept = 0, False
        self.programs: list[Process] = []

    def residency(self, _: int) -> int:
        return self.word

    def set_residency(self, _: int, residency: Residency) -> int:
        self._effect()
        self.word = (reports.epoch_of(self.word) + 1) << 2 | residency
        for program in self.programs:
            program.word_changed()
        return self.word

    def room(self, _: int) -> bool:
        return self.kept

    def set_room(self, _: int, *, kept: bool) -> None:
        if kept is not self.kept:
            self._effect()
            self.kept = kept

    def uncharged(self, _: int) -> int:
        return 0


class Usage:
    """A grant's usage page."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def usage(self, slot: int, _: int) -> SlotUsage:
        return self._limits.programs[slot].said

    def fixed(self, _: int) -> dict[object, int]:
        return {}


def held(limits: Limits, _: Usage, __: int) -> tuple[int, int]:
    """As gpushare.binding.pages.held."""
    size = sum(program.said.memory_bytes for program in limits.programs)
    return size, size


def meant(word: int) -> Residency:
    """Where a word wants the memory."""
    return Residency(word & 3)
