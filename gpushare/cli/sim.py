"""gpushare sim ..."""

import argparse

from gpushare.cli.command import add_json, add_socket, add_verb, client, print_json, table
from gpushare.errors import FailedError
from gpushare.paths import SIM_LIB_DIR
from gpushare.units import format_size


class SimCommand:
    """the simulated GPU: its libraries and its own books"""

    name = "sim"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        verbs = parser.add_subparsers(metavar="VERB", required=True)
        libdir = add_verb(verbs, "libdir", "directory with the simulated libcuda.so.1 and libnvidia-ml.so.1")
        add_json(libdir)
        libdir.set_defaults(verb=self._libdir)
        stats = add_verb(verbs, "stats", "what the simulator itself counted: time and memory of every process")
        add_json(stats)
        add_socket(stats)
        stats.set_defaults(verb=self._stats)

    def run(self, args: argparse.Namespace) -> int:
        status: int = args.verb(args)
        return status

    def _libdir(self, args: argparse.Namespace) -> int:
        if not SIM_LIB_DIR.is_dir():
            raise FailedError(f"{SIM_LIB_DIR} does not exist: build the project with `make build`")
        if args.json:
            print_json({"libdir": str(SIM_LIB_DIR)})
        else:
            print(SIM_LIB_DIR)
        return 0

    def _stats(self, args: argparse.Namespace) -> int:
        books = client(args).sim_stats()
        if args.json:
            print_json(books)
            return 0
        rows = [
            [
                device["uuid"],
                process["pid"],
                f"{process['busy_ns'] / 1e9:.6f}",
                format_size(process["bytes"]),
                format_size(process["peak_bytes"]),
            ]
            for device in books["devices"]
            for process in device["processes"]
        ]
        table(("DEVICE", "PID", "BUSY S", "MEMORY", "PEAK"), rows)
        return 0
