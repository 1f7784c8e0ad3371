"""The client's part on the connection for control: it says that it is there, and notices that the relay is not."""

from collections.abc import Callable
from typing import Any

import msgspec

from gpushare.api.remote import LinkReport
from gpushare.relay import lines
from gpushare.relay.control import Control
from gpushare.relay.loop import Loop
from gpushare.relay.streams import Plain
from gpushare.relay.wire import BEAT_SECONDS, SILENT_SECONDS

GONE = "gone"
"""Why an attachment has ended, where the relay has not said it."""
_PART_SECONDS = 1.0


class Held:
    """An attachment, for as long as its connection for control holds. All of it belongs to the loop's thread."""

    def __init__(
        self, loop: Loop, stream: Plain, noticed: Callable[[str], None], ended: Callable[[str, str], None]
    ) -> None:
        """`noticed`: called with each line for the program's user. `ended`: called once, if it has ended by itself,
        with why, as Attachment.ending says or GONE, and a line about it or an empty one. Calls nothing from here."""
        self._loop, self._noticed, self._ended = loop, noticed, ended
        self._control = Control(loop, stream, lines.from_relay, self._said, lambda _: self._end(GONE))
        self._beats, self._heard, self._over = 0, loop.now(), False
        loop.after(0, self._beat)

    def report(self, found: dict[str, Any]) -> None:
        """Tells what the link check found. `found`: a LinkReport in JSON."""
        self._control.send(lines.FromClient(checked=msgspec.convert(found, LinkReport)))

    def part(self, parted: Callable[[], None]) -> None:
        """Ends the attachment. `parted`: called once that is done, not from here."""
        if self._over:
            self._loop.after(0, parted)
            return
        self._over = True
        self._control.part(lines.FromClient(bye=True), _PART_SECONDS, parted)

    def _beat(self) -> None:
        if self._over:
            return
        if self._loop.now() - self._heard > SILENT_SECONDS:
            self._control.cut()
            self._end("lost")
            return
        self._beats += 1
        self._control.send(lines.FromClient(beat=self._beats))
        self._loop.after(BEAT_SECONDS, self._beat)

    def _said(self, line: lines.FromRelay) -> None:
        self._heard = self._loop.now()
        if line.notice:
            self._noticed(line.notice)
        if line.end is not None:
            self._control.cut()
            self._end(line.end, line.text)

    def _end(self, why: str, text: str = "") -> None:
        if not self._over:
            self._over = True
            self._ended(why, text)
