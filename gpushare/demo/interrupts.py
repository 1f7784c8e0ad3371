"""Ctrl-C and SIGTERM end the demo by an exception, so that everything is cleaned up, but never between the creation of
an object and its registration for clean-up."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

_NUMBERS = (signal.SIGINT, signal.SIGTERM)


class _Interrupts:
    def __init__(self) -> None:
        self.held = 0
        self.waiting = False

    def come(self, _signal: int, _frame: FrameType | None) -> None:
        self.waiting = True
        self.deliver()

    def deliver(self) -> None:
        if self.waiting and not self.held:
            self.waiting = False
            raise KeyboardInterrupt


_interrupts = _Interrupts()


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Turns SIGINT and SIGTERM into KeyboardInterrupt, outside `uninterrupted`."""
    before = [(number, signal.signal(number, _interrupts.come)) for number in _NUMBERS]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Defers interrupts to the end of the block."""
    _interrupts.held += 1
    try:
        yield
    finally:
        _interrupts.held -= 1
    _interrupts.deliver()
