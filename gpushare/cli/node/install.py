"""gpushare install, gpushare uninstall."""

import argparse
from pathlib import Path

from gpushare.cli.command import Command
from gpushare.cli.node.runtime import ENGINE_NAMES
from gpushare.cli.parser import Parser


def _root_options(parser: Parser) -> None:
    parser.option(
        "--root", "DIR", "act on the root file system in DIR (default /, this machine's)", Path, default=Path("/")
    )
    parser.flag("--dry-run", "print what would be done and change nothing")


class InstallCommand(Command):
    """make this machine a node: unit, group, configuration

    A second run changes nothing; after an upgrade of gpushare it installs the new version's files and restarts the
    daemon. Files in /etc/gpushare are created if absent, and never overwritten.
    """

    examples = (
        ("gpushare install --dry-run", "what it would write"),
        ("sudo gpushare install --engine docker", "a node, with docker configured for it"),
    )

    def prepare_parser(self, parser: Parser) -> None:
        parser.epilog = "`gpushare runtime configure` sets up engines; those found here are listed at the end."
        _root_options(parser)
        parser.flag("--no-start", "do not start the daemon now, only at boot")
        parser.add_argument(
            "--engine",
            action="append",
            default=[],
            choices=ENGINE_NAMES,
            help="also configure this engine; repeatable (default none)",
        )

    def run(self, args: argparse.Namespace) -> int:
        from gpushare.install.verbs import install

        install(args.root, args.engine, dry_run=args.dry_run, start=not args.no_start)
        return 0


class UninstallCommand(Command):
    """remove what `gpushare install` put on this machine

    Files changed since then are left in place and listed. Refuses while grants live.
    """

    examples = (
        ("gpushare uninstall --dry-run", "what it would remove"),
        ("sudo gpushare uninstall --purge", "also the ledger and the group"),
    )

    def prepare_parser(self, parser: Parser) -> None:
        _root_options(parser)
        parser.flag("--purge", "also remove the node's records in /var/lib/gpushare and the group (default: keep them)")
        parser.flag(
            "--force",
            "proceed although grants live (they continue without a daemon, within their memory) or an engine requires"
            " the NRI plugin",
        )

    def run(self, args: argparse.Namespace) -> int:
        from gpushare.install.verbs import uninstall

        uninstall(args.root, dry_run=args.dry_run, purge=args.purge, force=args.force)
        return 0
