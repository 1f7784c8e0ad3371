"""The `gpushare` command: one parser over all verb families, one place that turns errors into exit codes."""

import contextlib
import os
import sys
from collections.abc import Sequence

from gpushare import __version__
from gpushare.cli import children, completion
from gpushare.cli.command import add_verbs, say
from gpushare.cli.parser import Parser
from gpushare.errors import FailedError, GpushareError

GROUPS: tuple[tuple[str, dict[str, str]], ...] = (
    ("try it", {"demo": "node.demo.DemoCommand", "sim": "node.sim.SimCommand"}),
    (
        "run a node",
        {
            "install": "node.install.InstallCommand",
            "daemon": "node.daemon.DaemonCommand",
            "doctor": "node.doctor.DoctorCommand",
            "uninstall": "node.install.UninstallCommand",
        },
    ),
    (
        "use it",
        {
            "run": "grants.run.RunCommand",
            "plan": "grants.plan.PlanCommand",
            "grant": "grants.grant.GrantCommand",
            "gang": "grants.gang.GangCommand",
            "nodes": "remote.nodes.NodesCommand",
            "remote": "remote.remote.RemoteCommand",
            "yield": "grants.yielding.YieldCommand",
            "pause": "grants.pausing.PauseCommand",
            "resume": "grants.pausing.ResumeCommand",
        },
    ),
    (
        "look",
        {
            "ps": "look.show.PsCommand",
            "top": "look.show.TopCommand",
            "dashboard": "look.dashboard.DashboardCommand",
            "devices": "look.show.DevicesCommand",
            "why": "look.why.WhyCommand",
            "events": "look.watch.EventsCommand",
            "watch": "look.watch.WatchCommand",
            "usage": "usage.usage.UsageCommand",
        },
    ),
    (
        "administer",
        {
            "tenants": "grants.tenants.TenantsCommand",
            "quota": "grants.quota.QuotaCommand",
            "drain": "node.drain.DrainCommand",
            "undrain": "node.drain.UndrainCommand",
        },
    ),
    (
        "integrate",
        {
            "runtime": "node.runtime.RuntimeCommand",
            "adapter": "adapters.adapter.AdapterCommand",
            "labels": "node.labels.LabelsCommand",
            "completion": "completion.CompletionCommand",
        },
    ),
)
"""Groups of verbs by purpose; each verb with the module and class that implement it."""
VERBS = {name: place for _, verbs in GROUPS for name, place in verbs.items()}
EXIT_STATUS = "exit status: 0 ok, 1 failed, 2 usage, 3 refused, 4 no daemon or not allowed to talk to it"


def build_parser(only: str | None = None) -> Parser:
    """Returns the parser of the whole command line, or of only one verb. Imports the verbs' modules but not what they
    need to run: start-up time would go mostly to verbs that were not called."""
    parser = Parser(
        prog="gpushare", description="Exact shares of NVIDIA GPUs for many containers on one node.", epilog=EXIT_STATUS
    )
    parser.groups = GROUPS
    parser.examples = (
        ("gpushare", "what this node lacks, and the first commands to run"),
        ("gpushare run --memory 8GiB --time 30% -- python3 train.py", "a program in a share of a device"),
        ("gpushare run --help", "help on one verb"),
    )
    parser.add_argument("--version", action="version", version=f"gpushare {__version__}", help="print the version")
    add_verbs(parser, VERBS if only is None else {only: VERBS[only]})
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status. A GpushareError becomes one line on stderr, and so does an output
    that cannot be written."""
    try:
        try:
            status = _run(sys.argv[1:] if arguments is None else arguments)
        except SystemExit:  # argparse has printed the help or the version
            sys.stdout.flush()
            raise
        sys.stdout.flush()  # here, where a full disk can still be reported
    except GpushareError as error:
        return _failed(error)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _discard_output()  # its reader is gone
        return FailedError.exit_code
    except OSError as error:
        _discard_output()
        return _failed(FailedError(f"{error.filename or 'the output'} cannot be written: {error.strerror or error}"))
    return status


def _run(given: Sequence[str]) -> int:
    if completion.is_asked_by_shell():
        completion.answer(build_parser())
    if not given:
        from gpushare.cli.node import first

        first.show()
        return 0
    if given[0] == "help":
        given = [*given[1:], "--help"]
    args = build_parser(given[0] if given[0] in VERBS else None).parse_args(given)
    status: int = args.run(args)
    return status


def _failed(error: GpushareError) -> int:
    with contextlib.suppress(OSError):  # stderr may be full or closed too
        say(f"gpushare: {error}", sys.stderr)
    return error.exit_code


def _discard_output() -> None:
    """What is still buffered must not fail again when Python flushes it at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def entry() -> None:
    """The installed command: exits with the status of `main`."""
    children.watch()
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:  # closed by the caller; a file that is opened later must not take its place
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115 - until exit
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr] # names may be any bytes
    status = main()
    try:
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    sys.exit(status)
