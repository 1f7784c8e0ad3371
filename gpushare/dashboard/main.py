"""The dashboard's process. It runs as the user who starts it; if that is root, it becomes nobody before serving."""

import asyncio
import os
import pwd
import secrets
import signal
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gpushare.dashboard import relay
from gpushare.dashboard.node import Node, followed
from gpushare.dashboard.readers import Readers
from gpushare.dashboard.server import Site, assets
from gpushare.dashboard.sources import Source
from gpushare.errors import FailedError, UsageError
from gpushare.policy.usage.billing import Prices
from gpushare.processes.helper import NOBODY, become_nobody

_TOKEN_BYTES = 24


def serve(sources: Sequence[Source], port: int, prices: Prices | None = None, *, changes: bool) -> None:
    """Prints the URL and serves until SIGTERM or SIGINT. `port`: on loopback; 0: any. Raises UsageError or
    FailedError."""
    pages = assets()
    if root := os.geteuid() == 0:
        _check_root(sources, changes=changes)
    with tempfile.TemporaryDirectory(prefix="gpushare-", ignore_cleanup_errors=True) as own:
        sockets = [_socket(Path(own), number, source, relayed=root) for number, source in enumerate(sources)]
        if root:
            _give_up(Path(own), sockets, sources)
        with _listener(port) as listener:
            asyncio.run(_serve(sources, sockets, listener, pages, prices, changes=changes))


def _socket(own: Path, number: int, source: Source, *, relayed: bool) -> Path:
    """Returns the socket by which this process reaches the source."""
    return own / f"{number}.sock" if relayed or source.host else source.socket


def _give_up(own: Path, sockets: Sequence[Path], sources: Sequence[Source]) -> None:
    """Turns this process from root into nobody, without capabilities; it then reaches the daemons by a relay. Raises
    FailedError."""
    listeners = []
    for path in sockets:
        listeners.append(listener := socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        listener.bind(os.fspath(path))
        path.chmod(0o666)
        listener.listen()
    # Only now: from here on, other processes of nobody can change the directory's contents.
    os.chown(own, NOBODY, NOBODY)
    try:
        relay.start(listeners, [source.socket for source in sources])
        become_nobody()
    except OSError as error:
        raise FailedError(
            f"root's rights cannot be given up here ({error.strerror}): start it as another user"
        ) from None
    for listener in listeners:
        listener.close()


async def _serve(
    sources: Sequence[Source],
    sockets: Sequence[Path],
    listener: socket.socket,
    pages: dict[str, tuple[str, bytes]],
    prices: Prices | None,
    *,
    changes: bool,
) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    nodes: list[Node] = []
    async with followed(nodes) as want:
        readers = Readers(want)
        places = zip(sources, sockets, strict=True)
        nodes += [Node(number, source, path, readers.publish) for number, (source, path) in enumerate(places)]
        site = Site(nodes, readers, token, pages, prices, changes=changes, user=_user())
        runner = await site.start(listener)
        # In the fragment, which browsers do not send to a server: the token gets into no log and no referrer.
        print(f"http://127.0.0.1:{listener.getsockname()[1]}/#{token}", flush=True)
        await ended.wait()
        await runner.cleanup()


def _listener(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        listener.close()
        raise FailedError(
            f"cannot listen on port {port}: {error.strerror}: give another --port, or 0 for any"
        ) from None
    return listener


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _check_root(sources: Sequence[Source], *, changes: bool) -> None:
    """Raises UsageError for options that root's dashboard cannot support."""
    if changes:
        raise UsageError(
            "--allow-changes: root's dashboard gives up its rights and changes nothing: start it as the user whose "
            "grants it may change (sudo -u USER gpushare dashboard --allow-changes)"
        )
    for source in sources:
        if source.host:
            raise UsageError(f"ssh:{source.host}: root's dashboard cannot use root's keys: start it as your own user")
