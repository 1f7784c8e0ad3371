"""gpushare adapter slurm"""

import argparse
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gpushare.cli.command import Command, client
from gpushare.cli.parser import Parser
from gpushare.errors import UsageError

if TYPE_CHECKING:
    from gpushare.client import types

PER_DEVICE = 100
WHAT = ("conf", "scripts", "prolog", "epilog", "reap")


class SlurmAdapter(Command):
    """enforce Slurm's gres/shard (root)

    conf and scripts are for configuring Slurm, prolog and epilog for slurmd.
    """

    examples = (
        ("gpushare adapter slurm conf", "this node's lines of slurm.conf and gres.conf"),
        ("sudo gpushare adapter slurm scripts /etc/slurm/gpushare", "prolog, epilog and task-prolog"),
    )

    def prepare_parser(self, parser: Parser) -> None:
        parser.add_argument(
            "what",
            choices=WHAT,
            metavar="WHAT",
            help="conf: print lines of slurm.conf and gres.conf; scripts: write prolog, epilog and task-prolog; prolog,"
            " epilog: called by those scripts; reap: end grants of jobs that ended without an epilog",
        )
        parser.add_argument("to", nargs="?", type=Path, metavar="DIR", help="with scripts: directory to write them to")
        parser.option("--shards", "N", f"shards per device (default {PER_DEVICE})", int, default=PER_DEVICE)

    def run(self, args: argparse.Namespace) -> int:
        import logging

        from gpushare.adapters.slurm.job import Job
        from gpushare.adapters.slurm.programs import Programs
        from gpushare.client import AWAY_SECONDS

        if not 1 <= args.shards <= 1000:
            raise UsageError(f"{args.shards} shards of a device: give 1 to 1000")
        logging.basicConfig(level=logging.INFO, format="gpushare: %(message)s")
        daemon = client(args)
        if args.what == "conf":
            return _conf(daemon.devices(), args.shards)
        directory = Path(daemon.node()["run_dir"], "slurm") if args.what == "scripts" else None
        if args.what == "scripts":
            assert directory is not None
            return _scripts(args, directory)
        # Slurm drains a node whose prolog or epilog fails.
        daemon = daemon.patient(AWAY_SECONDS)
        programs = Programs(daemon, Path(os.environ.get("GPUSHARE_SLURM_DIR", "/run/gpushare/slurm")), args.shards)
        if args.what == "reap":
            print("\n".join(programs.reap()))
        elif args.what == "prolog":
            programs.prolog(Job.of(os.environ), os.environ.get("SLURMD_NODENAME", socket.gethostname()))
        else:
            programs.epilog(Job.of(os.environ))
        return 0


def _conf(devices: "list[types.Device]", shards: int) -> int:
    from gpushare.adapters.slurm import conf

    files = [f"/dev/nvidia{device['minor']}" for device in devices]
    name = socket.gethostname().partition(".")[0]
    print(conf.node(name, len(devices), shards) + conf.gres(devices, files, shards), end="")
    return 0


def _scripts(args: argparse.Namespace, directory: Path) -> int:
    from gpushare.adapters.slurm import conf

    if args.to is None:
        raise UsageError("where to? gpushare adapter slurm scripts DIR")
    options = ["--shards", str(args.shards), *(["--socket", args.socket] if args.socket else [])]
    args.to.mkdir(parents=True, exist_ok=True)
    gpushare = ["env", f"GPUSHARE_SLURM_DIR={directory}", sys.executable, "-P", "-m", "gpushare"]
    for name, text in conf.scripts(gpushare, options, str(directory)).items():
        (args.to / name).write_text(text)
        (args.to / name).chmod(0o755)
        print(args.to / name)
    return 0
