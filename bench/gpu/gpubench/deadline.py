"""When the whole command has to be done."""

import time


class Deadline:
    def __init__(self, seconds: float | None) -> None:
        """None: never."""
        self._at = None if seconds is None else time.monotonic() + seconds

    def least(self, seconds: float, after: float = 0) -> float:
        """These seconds, or what is left for them where `after` seconds are needed behind; may be negative."""
        return seconds if self._at is None else min(seconds, self._at - after - time.monotonic())
