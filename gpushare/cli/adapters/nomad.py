"""gpushare adapter nomad"""

import argparse
import signal
import sys

from gpushare.cli.adapters import extra
from gpushare.cli.command import Command


class NomadAdapter(Command):
    """give Nomad tasks slots of devices; started by Nomad's agent"""

    examples = (("gpushare adapter nomad", "as Nomad's agent starts it"),)

    def run(self, args: argparse.Namespace) -> int:
        import json
        import logging

        try:
            from gpushare.adapters.nomad.plugin import Plugin, serve
        except ImportError as error:
            raise extra.missing(error, "nomad") from None

        class Lines(logging.Formatter):
            """Formats log records as Nomad's agent reads them from a plugin."""

            def format(self, record: logging.LogRecord) -> str:
                level = "warn" if record.levelno == logging.WARNING else record.levelname.lower()
                return json.dumps({"@level": level, "@module": "gpushare", "@message": record.getMessage()})

        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(Lines())
        logging.basicConfig(level=logging.INFO, handlers=[handler])
        plugin = Plugin(args.socket)

        def say(line: str) -> None:
            sys.stdout.write(line)
            sys.stdout.flush()

        signal.signal(signal.SIGTERM, lambda *_: plugin.ended.set())
        # Ctrl-C on the agent's terminal reaches its plugins too, but the agent decides when they end.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        serve(plugin, say)
        return 0
