"""The `gpushare` command: one parser over all verb families, one place that turns errors into exit codes."""

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
from gpushare.cli.command import Command, add_verb, say
from gpushare.cli.parser import Parser
from gpushare.errors import GpushareError

GROUPS: tuple[tuple[str, tuple[Command, ...]], ...] = (
    ("try it", (demo.DemoCommand(), sim.SimCommand())),
    (
        "run a node",
        (install.InstallCommand(), daemon.DaemonCommand(), doctor.DoctorCommand(), install.UninstallCommand()),
    ),
    ("use it", (run.RunCommand(), plan.PlanCommand(), grant.GrantCommand(), gang.GangCommand())),
    (
        "look",
        (
            show.PsCommand(),
            show.TopCommand(),
            dashboard.DashboardCommand(),
            show.DevicesCommand(),
            why.WhyCommand(),
            watch.EventsCommand(),
            watch.WatchCommand(),
            usage.UsageCommand(),
        ),
    ),
    (
        "administer",
        (tenants.TenantsCommand(), quota.QuotaCommand(), drain.DrainCommand(), drain.UndrainCommand()),
    ),
    (
        "integrate",
        (
            runtime.RuntimeCommand(),
            adapter.AdapterCommand(),
            labels.LabelsCommand(),
            completion.CompletionCommand(),
        ),
    ),
)
"""All verbs, by what a person wants to do."""
COMMANDS: tuple[Command, ...] = tuple(command for _, commands in GROUPS for command in commands)
EXIT_STATUS = "exit status: 0 ok, 1 failed, 2 usage, 3 refused, 4 no daemon or not allowed to talk to it"


def build_parser() -> Parser:
    """The whole command line. Imports no verb's own dependencies."""
    parser = Parser(
        prog="gpushare", description="Exact shares of NVIDIA GPUs for many containers on one node.", epilog=EXIT_STATUS
    )
    parser.groups = [(title, [command.name for command in commands]) for title, commands in GROUPS]
    parser.examples = (
        ("gpushare", "what this node lacks, and what to do first"),
        ("gpushare run --memory 8GiB --time 30% -- python3 train.py", "a program in a share of a device"),
        ("gpushare run --help", "all about one verb"),
    )
    parser.add_argument("--version", action="version", version=f"gpushare {__version__}", help="print the version")
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    for command in COMMANDS:
        verb = add_verb(verbs, command.name, command.__doc__ or "", *command.examples)
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
        if given[0] == "help":
            given = [*given[1:], "--help"]
        args = build_parser().parse_args(given)
        command: Command = args.command
        return command.run(args)
    except GpushareError as error:
        say(f"gpushare: {error}", sys.stderr)
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
