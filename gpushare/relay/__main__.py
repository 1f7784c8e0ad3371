"""The relay's main program. Unlike other helpers it outlives the daemon that starts it."""

import contextlib
import gc
import os
import signal
import socket
import ssl
from collections.abc import Collection
from pathlib import Path

import msgspec

from gpushare.processes import helper
from gpushare.relay import certificate, limits, messages
from gpushare.relay.arrivals import Arrivals
from gpushare.relay.daemons import Daemons
from gpushare.relay.loop import Loop
from gpushare.relay.relay import Relay

_OOM = Path("/proc/self/oom_score_adj")
_BACKLOG = 1024
_DAEMONS = 4


def main(parent: str, control: str, listen: str, times: str = "{}") -> None:
    """Serves until a daemon says `Stop`, or until there has been nothing to do for a while.

    `control`: path of the socket for daemons. `listen`: `HOST:PORT`, `[HOST]:PORT`. `times`: JSON of limits.Times, for
    tests. Says `ready` on stdout once it serves, or what is wrong, for people, and ends with status 1.
    """
    del parent
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all
    try:
        users = {0, os.geteuid()}
        with contextlib.suppress(OSError):  # a daemon may be among the last to be killed for memory; this is not
            if int(_OOM.read_text()) < 0:
                _OOM.write_text("0")
        listener, daemons = _listen(listen), _bind(control)
        helper.limit(limits.ADDRESS_SPACE, limits.DESCRIPTORS)
        if os.geteuid() == 0:
            helper.become_nobody()
        else:
            helper.seal()
        context, fingerprint = certificate.make()
    except (OSError, ValueError) as error:
        print(getattr(error, "strerror", None) or error)
        raise SystemExit(1) from None
    here = messages.Here(messages.VERSION, os.getpid(), listener.getsockname()[1], fingerprint, listen)
    relay = _Process(listener, daemons, users, context, here, msgspec.json.decode(times, type=limits.Times))
    print("ready", flush=True)
    with open(os.devnull, "w") as null:
        os.dup2(null.fileno(), 1)
    gc.collect()
    gc.freeze()
    relay.loop.run()


class _Process:
    """What is wired together, and when it ends."""

    def __init__(
        self,
        listener: socket.socket,
        control: socket.socket,
        users: Collection[int],
        context: ssl.SSLContext,
        here: messages.Here,
        times: limits.Times,
    ) -> None:
        self.loop = Loop()
        self._times = times
        self._relay = Relay(self.loop, times, lambda attachment_id: self._daemons.changed(attachment_id))
        self._arrivals = Arrivals(self.loop, listener, context, times, self._relay.arrived)
        self._daemons = Daemons(self.loop, control, users, here, self._relay.book, self._relay.measure, self._heard)
        self._busy = self.loop.now()
        self.loop.after(times.beat, self._tick)

    def _heard(self, message: messages.FromDaemon, descriptor: int | None) -> None:
        if isinstance(message, messages.Stop):
            self._arrivals.close()
            self._relay.stop(self.loop.stop)
        self._relay.heard(message, descriptor)

    def _tick(self) -> None:
        """Ends what nobody needs any more."""
        now = self.loop.now()
        if self._daemons.connected or self._relay.book.living():
            self._busy = now
        unnoted = any(True for _ in self._relay.book)
        if now - self._busy > (self._times.unnoted if unnoted else self._times.idle):
            self.loop.stop()
        self.loop.after(self._times.beat, self._tick)


def _listen(address: str) -> socket.socket:
    """Raises OSError, ValueError."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server(
            (host, int(port)),
            family=family,
            backlog=_BACKLOG,
            dualstack_ipv6=host == "::" and socket.has_dualstack_ipv6(),
        )
    except OSError as error:
        raise OSError(error.errno, f"nothing can listen at {address}: {os.strerror(error.errno or 0)}") from None


def _bind(path: str) -> socket.socket:
    """The socket for daemons, in place of one that is there. Raises OSError."""
    Path(path).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    before = os.umask(0o177)
    try:
        listener.bind(path)
    finally:
        os.umask(before)
    listener.listen(_DAEMONS)
    return listener
