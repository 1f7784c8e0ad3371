"""gpushare sim ..."""

import argparse
import os
from pathlib import Path

from gpushare.cli.command import Family, add_common, add_json, add_socket, answer, client, print_json, table, whole
from gpushare.cli.parser import Parser, checked
from gpushare.cli.program import command, missing, replace
from gpushare.errors import FailedError, RefusedError
from gpushare.paths import SIM_LIB_DIR
from gpushare.text.units import format_size

_index = whole("the index of a device", 0, 999, "`gpushare devices` shows them")


class SimCommand(Family):
    """the simulated GPU: libraries, counters, device faults

    Its kernels compute nothing and take a modelled time; memory and copies are real.
    """

    examples = (
        ("gpushare sim stats", "time and memory of each process, as the simulator counted them"),
        ("gpushare sim exec -- python3 train.py", "a program without a share, for comparison"),
    )

    def prepare_parser(self, parser: Parser) -> None:
        libdir = parser.verb(
            "libdir",
            self._libdir,
            "print the directory of the simulated libcuda.so.1 and libnvidia-ml.so.1",
            ("gpushare sim libdir", "for LD_LIBRARY_PATH"),
        )
        add_json(libdir)
        stats = parser.verb(
            "stats",
            self._stats,
            "print time and memory of each process, as the simulator counted them",
            ("gpushare sim stats --json", "in ns and bytes, with exact peaks"),
        )
        add_common(stats)
        execute = parser.verb(
            "exec",
            self._exec,
            "run a command on the simulated devices without a share; kernels compute nothing",
            ("gpushare sim exec -- python3 train.py", "alongside programs with shares"),
        )
        add_socket(execute)
        execute.add_argument(
            "argv", nargs=argparse.REMAINDER, metavar="-- CMD ...", help="the command and its arguments"
        )
        lose = parser.verb(
            "lose",
            self._set_lost,
            "make a device fail, as after a hardware fault (root)",
            ("sudo gpushare sim lose 0", "to see what happens to grants and guarantees"),
        )
        restore = parser.verb(
            "restore",
            self._set_lost,
            "make a lost device work again (root)",
            ("sudo gpushare sim restore 0", "everything is as before"),
        )
        for verb, lost in ((lose, True), (restore, False)):
            verb.add_argument("device", type=checked(_index), help="its index, as `gpushare devices` shows it")
            add_socket(verb)
            verb.set_defaults(lost=lost)

    def _libdir(self, args: argparse.Namespace) -> int:
        if not SIM_LIB_DIR.is_dir():
            raise FailedError(f"{SIM_LIB_DIR} does not exist: build the project with `make build`")
        return answer(args, {"libdir": str(SIM_LIB_DIR)}, lambda: print(SIM_LIB_DIR))

    def _exec(self, args: argparse.Namespace) -> int:
        argv = command(args.argv)
        if status := missing(argv):
            return status
        node = client(args).node()
        if node["sim_dir"] is None:
            raise RefusedError("this node's devices are real: `gpushare sim exec` is for simulated ones")
        from gpushare.inject import process

        return replace(argv, process.merge(os.environ, process.bare(Path(node["sim_dir"]), Path(node["driver_dir"]))))

    def _set_lost(self, args: argparse.Namespace) -> int:
        client(args).set_sim_lost(args.device, lost=args.lost)
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
                process["illegal_accesses"],
            ]
            for device in books["devices"]
            for process in device["processes"]
        ]
        table(("DEVICE", "PID", "BUSY S", "MEMORY", "PEAK", "ILLEGAL ACCESSES"), rows)
        return 0
