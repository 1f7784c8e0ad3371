"""The `gpushare` command: one parser over all verb families, one place that turns errors into exit codes."""

import argparse
import os
import sys
from collections.abc import Sequence

from gpushare import __version__
from gpushare.cli import (
    adapter,
    completion,
    daemon,
    dashboard,
    demo,
    doctor,
    drain,
    first,
    gang,
    grant,
    install,
    labels,
    plan,
    quota,
    run,
    runtime,
    show,
    sim,
    tenants,
    usage,
    watch,
    why,
)
from gpushare.cli.command import Command, Parser
from gpushare.errors import GpushareError

COMMANDS: tuple[Command, ...] = (
    daemon.DaemonCommand(),
    demo.DemoCommand(),
    install.InstallCommand(),
    install.UninstallCommand(),
    doctor.DoctorCommand(),
    show.DevicesCommand(),
    show.PsCommand(),
    show.TopCommand(),
    dashboard.DashboardCommand(),
    run.RunCommand(),
    grant.GrantCommand(),
    gang.GangCommand(),
    labels.LabelsCommand(),
    drain.DrainCommand(),
    drain.UndrainCommand(),
    plan.PlanCommand(),
    why.WhyCommand(),
    tenants.TenantsCommand(),
    quota.QuotaCommand(),
    runtime.RuntimeCommand(),
    adapter.AdapterCommand(),
    usage.UsageCommand(),
    watch.WatchCommand(),
    watch.EventsCommand(),
    sim.SimCommand(),
    completion.CompletionCommand(),
)


def build_parser() -> argparse.ArgumentParser:
    """The whole command line. Imports no verb's own dependencies."""
    parser = Parser(
        prog="gpushare",
        description="Exact shares of NVIDIA GPUs for many containers on one node.",
        epilog="exit status: 0 ok, 1 failed, 2 usage, 3 refused, 4 no daemon or not allowed to talk to it",
    )
    parser.add_argument("--version", action="version", version=f"gpushare {__version__}")
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    for command in COMMANDS:
        text = command.__doc__ or ""
        verb = verbs.add_parser(command.name, help=text.splitlines()[0], description=text)
        verb.set_defaults(command=command)
        command.prepare_parser(verb)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status. A GpushareError becomes one line on stderr."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        if completion.asked():
            completion.answer(build_parser())
        if not given:
            first.show()
            return 0
        args = build_parser().parse_args(given)
        command: Command = args.command
        return command.run(args)
    except GpushareError as error:
        print(f"gpushare: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output is gone; Python must not fail again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def entry() -> None:
    """The installed command: exits with the status of `main`."""
    sys.exit(main())
