"""An attachment's connections, and their counts."""

import socket
from collections.abc import Callable

from gpushare.relay import limits, lines, tcp
from gpushare.relay.arrivals import Arrival
from gpushare.relay.book import Attachment, Book
from gpushare.relay.checks import Check
from gpushare.relay.connector import Connector
from gpushare.relay.control import Control
from gpushare.relay.loop import Loop
from gpushare.relay.messages import Is
from gpushare.relay.splice import Splice
from gpushare.relay.streams import Plain
from gpushare.relay.wire import TAKEN, Purpose


class Session:
    """One living attachment's connections."""

    def __init__(self, loop: Loop, times: limits.Times, attachment: Attachment) -> None:
        self.attachment = attachment
        self.control: Control[lines.FromClient] | None = None
        self.told: Is | None = None
        """What the daemon was told with the last beat that changed something."""
        self._loop, self._times = loop, times
        self._splices: set[Splice] = set()
        self._checks: set[Check] = set()
        self._asking: set[Plain] = set()
        """Data connections that wait for their server."""
        self._past_in = self._past_out = 0
        """Bytes of connections that have ended."""
        self._beats = 0

    # Connections that were admitted.

    def take_control(
        self, arrival: Arrival, said: Callable[[lines.FromClient], None], gone: Callable[[OSError | None], None]
    ) -> None:
        """It is the connection for control."""
        self.attachment.address = arrival.address
        self.control = Control(self._loop, arrival.stream, lines.from_client, said, gone, TAKEN)
        self.measure(0)

    def take_check(self, arrival: Arrival) -> None:
        """It is for a link check."""
        tcp.prepare_data(arrival.stream.socket, self._times.silent)
        self._checks.add(Check(self._loop, arrival.stream, self._check_ended, TAKEN))

    def take_data(self, arrival: Arrival, connector: Connector) -> None:
        """It is for data."""
        self._asking.add(arrival.stream)
        self._loop.after(self._times.preamble, lambda: self._give_up(arrival.stream))
        tcp.prepare_data(arrival.stream.socket, self._times.silent)
        connector.ask(lambda server: self._connected(arrival, server))

    def _give_up(self, stream: Plain) -> None:
        """The supervisor does not answer. If it does later, the connection that it gives is closed."""
        if stream in self._asking:
            self._asking.discard(stream)
            stream.close()

    def _connected(self, arrival: Arrival, server: socket.socket | None) -> None:
        waits = arrival.stream in self._asking  # its attachment has not ended meanwhile
        self._asking.discard(arrival.stream)
        if server is None or not waits:
            if server is not None:
                server.close()
            arrival.stream.close()
            Book.left(self.attachment, Purpose.DATA)
            return
        self._splices.add(Splice(self._loop, arrival.stream, Plain(server), self._data_ended, TAKEN))

    def _data_ended(self, splice: Splice) -> None:
        self._splices.discard(splice)
        self._past_in += splice.there
        self._past_out += splice.back
        Book.left(self.attachment, Purpose.DATA)

    def _check_ended(self, check: Check) -> None:
        self._checks.discard(check)
        Book.left(self.attachment, Purpose.CHECK)

    # What is regular.

    def measure(self, seconds: float) -> None:
        """Brings the attachment's numbers up to date. `seconds`: since the last time; 0: it is none of those."""
        attachment = self.attachment
        before = attachment.bytes_in + attachment.bytes_out
        attachment.bytes_in = self._past_in + sum(splice.there for splice in self._splices)
        attachment.bytes_out = self._past_out + sum(splice.back for splice in self._splices)
        if seconds > 0:
            attachment.rate_bps = int((attachment.bytes_in + attachment.bytes_out - before) * 8 / seconds)
        if self.control is not None:
            attachment.rtt_us = tcp.rtt_us(self.control.stream.socket) or attachment.rtt_us

    def beat(self) -> None:
        """Sends the client a sign of life."""
        if self.control is not None:
            self._beats += 1
            self.control.send(lines.FromRelay(beat=self._beats))

    # Its end.

    def end(self, line: lines.FromRelay | None, parted: Callable[[], None]) -> None:
        """Cuts all connections. `line`: the client's last one; None: it does not hear us. `parted`: called when the
        connection for control has gone too, not from here."""
        self.measure(0)
        for splice in list(self._splices):
            splice.close()
        for check in list(self._checks):
            check.close()
        for stream in self._asking:
            stream.abort()
        self._asking.clear()
        control, self.control = self.control, None
        if control is None or line is None:
            if control is not None:
                control.cut()
            self._loop.after(0, parted)
        else:
            control.part(line, self._times.parting, parted)
