"""Options of verbs that use another node."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from gpushare.cli.parser import Parser
from gpushare.errors import UsageError
from gpushare.text.units import parse_size

if TYPE_CHECKING:
    from gpushare.remote.attaching import Wish

ANY = "any"


def add_elsewhere(parser: Parser) -> None:
    """Adds the options of `run` that name another node."""
    parser.option(
        "--on",
        "NODE",
        "run the command on this node, by ssh, with the options of a share as they are here and in the same directory,"
        " where it has that: nothing is slower for it. A name in nodes.toml, ssh:HOST, a host or unix:PATH (default:"
        " here)",
    )
    parser.option(
        "--remote",
        "NODE",
        "run the command here, with a share of a device of this node, as --on names it; `any`: the best that is free"
        " of those in nodes.toml. Each call that waits for the device takes a round trip longer (default: a device"
        " here)",
    )
    add_attach_options(parser, "with --remote: ")
    add_nodes(parser)


def add_attach_options(parser: Parser, when: str = "") -> None:
    """Adds the options of an attachment. `when`: before their help."""
    add_carrier(parser, when)
    parser.add_argument(
        "--link-min",
        choices=("good", "fair", "poor", "any"),
        help=f"{when}refuse a slower link: good is at most 50 us and at least 10 Gbit/s, fair 200 us and 5 Gbit/s, poor"
        " 1 ms and 1 Gbit/s (default poor)",
    )
    parser.option(
        "--host-memory",
        "SIZE",
        f"{when}memory of the node for the carrier's server (default: as the node says)",
        parse_size,
    )


def add_carrier(parser: Parser, when: str = "") -> None:
    """Adds the options that say what carries calls, and how. `when`: before their help."""
    parser.option("--carrier", "NAME", f"{when}the software that carries CUDA calls (default: the only one)")
    parser.add_argument(
        "--link",
        choices=("tls", "plain"),
        help=f"{when}plain does not encrypt: for networks that do (default tls)",
    )


def add_nodes(parser: Parser) -> None:
    """Adds the option that names a list of nodes."""
    parser.option(
        "--nodes",
        "FILE",
        "a list of nodes (default ~/.config/gpushare/nodes.toml and /etc/gpushare/nodes.toml)",
        Path,
    )


def check_elsewhere(args: argparse.Namespace) -> None:
    """Raises UsageError for options of `run` that exclude each other."""
    if args.on is not None and args.remote is not None:
        raise UsageError("--on runs the command there and --remote here: give one of them")
    if args.on is not None and any((args.carrier, args.link_min, args.link, args.host_memory)):
        raise UsageError("--carrier, --link, --link-min and --host-memory are for --remote: with --on there is no link")
    if args.remote is None:
        return
    if args.simulate is not None:
        raise UsageError("--simulate makes devices here: leave out --remote")
    if args.socket is not None:
        raise UsageError(f"--socket: name the node's with --remote unix:{args.socket}, or as `socket` in nodes.toml")
    if args.grant is None and (args.memory is None or args.time is None):
        raise UsageError("give --memory and --time, or --grant ID (see `gpushare run --help`)")
    if args.grant is not None and args.remote == ANY:
        raise UsageError("--grant is of one node: name that instead of `any`")


def wish(args: argparse.Namespace) -> "Wish":
    """What the options say of an attachment."""
    from gpushare.remote.attaching import Wish

    return Wish(args.carrier, args.link or "tls", args.link_min or "poor", args.host_memory)
