"""gpushare adapter prometheus"""

import argparse
import signal

from gpushare.cli.command import client
from gpushare.errors import FailedError, UsageError

LISTEN = "127.0.0.1:9417"


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"--listen {text[:80]!r} is no address: write HOST:PORT, such as {LISTEN} or [::1]:9417")
    return host.strip("[]"), int(port)


class PrometheusAdapter:
    """serve /metrics over TCP, for Prometheus to scrape (members of group gpushare)"""

    name = "prometheus"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--listen",
            metavar="HOST:PORT",
            default=LISTEN,
            help=f"(default {LISTEN}; whoever reaches it reads who uses what; port 0: any)",
        )

    def run(self, args: argparse.Namespace) -> int:
        import asyncio
        import logging

        from gpushare.adapters.prometheus.server import Server

        logging.basicConfig(level=logging.INFO, format="%(message)s")
        host, port = _address(args.listen)

        async def serve() -> None:
            ended = asyncio.Event()
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, ended.set)
            try:
                server = await Server(client(args)).start(host, port)
            except OSError as error:
                raise FailedError(f"cannot listen on {args.listen}: {error.strerror or error}") from None
            bound = server.sockets[0].getsockname()
            print(f"http://{f'[{bound[0]}]' if ':' in bound[0] else bound[0]}:{bound[1]}/metrics", flush=True)
            await ended.wait()
            server.close()

        asyncio.run(serve())
        return 0
