"""gpushare adapter prometheus"""

import argparse
import os
import signal
import sys

from gpushare.cli.command import Command, client
from gpushare.cli.parser import Parser
from gpushare.errors import FailedError, UsageError
from gpushare.paths import MONITORING

LISTEN = "127.0.0.1:9417"
FILES = {
    "rules": "prometheus/gpushare.rules.yml",
    "scrape": "prometheus/prometheus.yml",
    "dashboard": "grafana/gpushare.json",
}


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"--listen {text[:80]!r} is no address: write HOST:PORT, such as {LISTEN} or [::1]:9417")
    return host.strip("[]"), int(port)


class PrometheusAdapter(Command):
    """serve /metrics over TCP, for Prometheus to scrape (members of group gpushare)"""

    examples = (
        ("gpushare adapter prometheus", f"serves http://{LISTEN}/metrics"),
        ("gpushare adapter prometheus --print rules", "alert rules, for rule_files of prometheus.yml"),
    )

    def prepare_parser(self, parser: Parser) -> None:
        parser.option(
            "--listen",
            "HOST:PORT",
            f"address to listen on (default {LISTEN}; port 0: any); any client can see who uses what",
            default=LISTEN,
        )
        parser.flag(
            "--dcgm-names", "also serve use and memory under dcgm-exporter's names; not on nodes that run dcgm-exporter"
        )
        parser.add_argument(
            "--print",
            choices=tuple(FILES),
            help="print alert rules, the scrape configuration or the Grafana dashboard instead of serving",
        )

    def run(self, args: argparse.Namespace) -> int:
        if args.print is not None:
            sys.stdout.write((MONITORING / FILES[args.print]).read_text())
            return 0
        import asyncio
        import logging

        from gpushare.adapters.prometheus.dcgm import Names
        from gpushare.adapters.prometheus.server import Server

        logging.basicConfig(level=logging.INFO, format="%(message)s")
        host, port = _address(args.listen)

        async def serve() -> None:
            ended = asyncio.Event()
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, ended.set)
            try:
                names = Names(os.uname().nodename) if args.dcgm_names else None
                server = await Server(client(args), names).start(host, port)
            except OSError as error:
                raise FailedError(f"cannot listen on {args.listen}: {error.strerror or error}") from None
            bound = server.sockets[0].getsockname()
            print(f"http://{f'[{bound[0]}]' if ':' in bound[0] else bound[0]}:{bound[1]}/metrics", flush=True)
            await ended.wait()
            server.close()

        asyncio.run(serve())
        return 0
