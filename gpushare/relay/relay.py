"""The relay itself: its attachments from their addition to their end."""

import errno
import os
import socket
import time
from collections.abc import Callable

from gpushare.relay import limits, lines, messages
from gpushare.relay.arrivals import Arrival
from gpushare.relay.book import Attachment, Book
from gpushare.relay.connector import Connector
from gpushare.relay.loop import Loop, Timer
from gpushare.relay.sessions import Session
from gpushare.relay.wire import Purpose

_NETWORK = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN)
"""With other errors the client's machine has said itself that the connection has ended."""


class Relay:
    """Joins arrivals to servers as the daemon allows. `changed`: called with the id of an attachment of which the
    daemon should know."""

    def __init__(self, loop: Loop, times: limits.Times, changed: Callable[[str], None]) -> None:
        self.book = Book(times)
        self._loop, self._times, self._changed = loop, times, changed
        self._sessions: dict[str, Session] = {}
        self._connectors: dict[str, Connector] = {}
        self._parting = 0
        self._measured = loop.now()
        self._sweeping: Timer | None = None
        self._stopped: Callable[[], None] | None = None
        loop.after(times.beat, self._tick)

    # What the daemon asks for.

    def heard(self, message: messages.FromDaemon, descriptor: int | None) -> None:
        """Does what a daemon asks for. Owns the descriptor."""
        given = None if descriptor is None else _stream_of(descriptor)
        match message:
            case messages.Add():
                self._add(message, given)
                given = None
            case messages.End(grant, attachment_id, why, text):
                for each in self.book.living(grant):
                    if attachment_id in ("", each.id):
                        self._end(each, why, text)
            case messages.Notice(grant, text):
                self._notice(grant, text)
            case messages.Noted(attachment_id):
                self.book.noted(attachment_id)
        if given is not None:
            given.close()

    def stop(self, stopped: Callable[[], None]) -> None:
        """Ends all attachments; `stopped` is called when their clients have been told."""
        self._stopped = stopped
        for each in self.book.living():
            self._end(each, "relay", "the relay was stopped")
        self._parted(0)

    def _add(self, told: messages.Add, connector: socket.socket | None) -> None:
        if connector is not None:
            self._connect(told.grant, connector)
        made = self.book.add(told, self._loop.now())
        if made is None:
            return
        self._sessions[made.id] = Session(self._loop, self._times, made)
        if told.grant not in self._connectors:
            self._end(made, "server")
        elif len(self.book.living()) > limits.ATTACHMENTS_MAX or self._stopped is not None:
            self._end(made, "relay")
        else:
            self._changed(made.id)
            self._sweep()

    def _connect(self, grant: str, sock: socket.socket) -> None:
        """Has a new server for a grant. One that was before it goes, with what used it."""
        self._server_gone(grant)

        def gone() -> None:
            if self._connectors.get(grant) is made:
                self._server_gone(grant)

        made = self._connectors[grant] = Connector(self._loop, sock, gone)

    def _server_gone(self, grant: str) -> None:
        for each in self.book.living(grant):
            self._end(each, "server")
        self._close_server(grant)

    def _close_server(self, grant: str) -> None:
        connector = self._connectors.pop(grant, None)
        if connector is not None:
            connector.close()

    def _notice(self, grant: str, text: str) -> None:
        for each in self.book.living(grant):
            control = self._sessions[each.id].control
            if control is not None:
                control.send(lines.FromRelay(notice=text))

    # What clients do.

    def arrived(self, arrival: Arrival) -> None:
        """Joins a connection to what its ticket allows, or closes it."""
        preamble, stream = arrival.preamble, arrival.stream
        attachment = self.book.admit(preamble, arrival.link, self._loop.now())
        if attachment is None:
            stream.close()
            return
        session = self._sessions[attachment.id]
        match preamble.purpose:
            case Purpose.CONTROL:
                session.take_control(
                    arrival, lambda line: self._said(attachment, line), lambda error: self._gone(attachment, error)
                )
                self._changed(attachment.id)
                self._sweep()
            case Purpose.DATA:
                session.take_data(arrival, self._connectors[attachment.told.grant])
            case Purpose.CHECK:
                session.take_check(arrival)

    def _said(self, attachment: Attachment, line: lines.FromClient) -> None:
        attachment.heard = self._loop.now()
        if line.checked is not None:
            first, attachment.checked = not attachment.checked, line.checked.checked
            if first:  # later ones with the beat: the daemon writes each down, and a client may send thousands
                self._changed(attachment.id)
        if line.bye:
            self._end(attachment, "detached")

    def _gone(self, attachment: Attachment, error: OSError | None) -> None:
        lost = isinstance(error, TimeoutError) or (error is not None and error.errno in _NETWORK)
        self._end(attachment, "lost" if lost else "detached")

    # Time.

    def measure(self) -> None:
        """Brings the numbers of all attachments up to date."""
        for session in self._sessions.values():
            session.measure(0)

    def _tick(self) -> None:
        """Once a beat."""
        self._loop.after(self._times.beat, self._tick)  # first: whatever goes wrong here, the next beat comes
        now = self._loop.now()
        seconds, self._measured = now - self._measured, now
        for session in list(self._sessions.values()):
            session.beat()
            session.measure(seconds)
            state = session.attachment.as_message()
            if session.attachment.lives and state != session.told:
                session.told = state
                self._changed(session.attachment.id)

    def _sweep(self) -> None:
        """Ends whose time is over, and comes again for the next."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        for late, why in self.book.late(self._loop.now()):
            self._end(late, why)
        deadline = self.book.deadline()
        if deadline is not None:
            self._sweeping = self._loop.after(max(0.0, deadline - self._loop.now()), self._sweep)

    # Ends.

    def _end(self, attachment: Attachment, why: str, text: str = "") -> None:
        if not attachment.lives:
            return
        session = self._sessions.pop(attachment.id)
        self.book.end(attachment, why, self._loop.now(), time.time_ns())
        self._parting += 1
        line = None if why == "lost" else lines.FromRelay(end=why, text=text)
        session.end(line, lambda: self._parted(1))
        if not self.book.living(attachment.told.grant):
            self._close_server(attachment.told.grant)
        self._changed(attachment.id)

    def _parted(self, count: int) -> None:
        self._parting -= count
        if self._stopped is not None and self._parting == 0:
            self._stopped()


def _stream_of(descriptor: int) -> socket.socket | None:
    try:
        return socket.socket(fileno=descriptor)
    except OSError:
        os.close(descriptor)
        return None
