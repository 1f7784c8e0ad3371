"""gpushare remote ..."""

import argparse
import contextlib
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from gpushare.cli.command import NOTHING, Family, add_common, add_json, answer, client, print_json, say, table
from gpushare.cli.grants.away import add_attach_options, add_carrier, add_nodes
from gpushare.cli.grants.grant import add_share_options, add_wait
from gpushare.cli.parser import Parser
from gpushare.errors import UsageError
from gpushare.processes.users import user_name
from gpushare.text.units import format_size

_ENDING = (signal.SIGTERM, signal.SIGHUP)
_NODE = "a name in nodes.toml, ssh:HOST[:/PATH], a host or unix:PATH"


class RemoteCommand(Family):
    """use a device of another node from here

    Where the program can run on that node, run it there: `gpushare run --on NODE` costs it nothing. For a program that
    has to stay here: `gpushare run --remote NODE`, or for one that is started by something else, `gpushare remote
    attach`.
    """

    examples = (
        ("gpushare remote attach --memory 8GiB --time 30% gpu1", "an environment for a notebook that runs here"),
        ("gpushare remote check gpu1", "how good the link to gpu1 is"),
        ("gpushare remote list", "who uses this node from elsewhere"),
    )

    def prepare_parser(self, parser: Parser) -> None:
        attach = parser.verb(
            "attach",
            self._attach,
            "hold a share of another node's device for programs of this machine\n\nPrints the environment that a"
            " program needs, and holds the share until it is ended (Ctrl-C). Programs of this user only can use it.",
            ("gpushare remote attach --memory 8GiB --time 30% gpu1", "in one terminal; paste the lines into another"),
            ("gpushare remote attach --grant g-1a2b3c --json gpu1", "in a grant that was made there with --keep"),
        )
        attach.epilog = (
            "exit status: 0 ended by you, 1 ended by itself, 3 refused or the link is too slow, 4 unreachable"
        )
        add_share_options(attach, instead="--grant")
        attach.option("--grant", "ID", "attach to this grant of the node, made with --keep (default: a new one)")
        add_attach_options(attach)
        attach.flag("--cdi", "offer it to containers of this machine too, as a CDI device; for root")
        attach.option("--cdi-name", "NAME", "name of that device (default: the attachment's id)")
        add_wait(attach)
        check = parser.verb(
            "check",
            self._check,
            "measure the link to a node\n\nTakes a grant of the least size there, without time of its own, for about a"
            " second, and measures round trips and rates through the same relays as a program's calls.",
            ("gpushare remote check gpu1", "its round trip, its rate each way, and its class"),
        )
        check.epilog = "exit status: 0 measured, 3 refused, 4 unreachable"
        check.option("--tenant", "T", "tenant of that grant (default: the tenant `default`)")
        add_carrier(check)
        for verb in (attach, check):
            verb.add_argument("node", metavar="NODE", help=_NODE)
            add_nodes(verb)
            add_json(verb)
        every = parser.verb(
            "list",
            self._list,
            "attachments to a node: who uses its devices from elsewhere, and how good their links are",
            ("gpushare remote list", "of this node"),
            ("gpushare remote list --since 7d gpu1", "of another one, with those that ended in the last week"),
        )
        every.add_argument("node", nargs="?", metavar="NODE", help=f"{_NODE} (default: this node)")
        every.option(
            "--since",
            "T",
            "also those that have ended since then: 7d or 12h ago, 2026-11-01 ... (default: the latest)",
            _moment,
        )
        add_nodes(every)
        add_common(every)

    def _attach(self, args: argparse.Namespace) -> int:
        if args.grant is None and (args.memory is None or args.time is None):
            raise UsageError("give --memory and --time, or --grant ID (see `gpushare remote attach --help`)")
        from gpushare.cli.grants.remotely import attached_to
        from gpushare.remote import nodes

        try:
            for number in _ENDING:
                signal.signal(number, _interrupt)
            with attached_to(nodes.find(args.node, args.nodes), args) as (_, attached), contextlib.ExitStack() as stack:
                attached.local.start()
                device = stack.enter_context(_offered(attached, args)) if args.cdi or args.cdi_name else ""
                self._say_environment(args, attached, device)
                attached.local.over.wait()
        except KeyboardInterrupt:
            return 0
        return 1

    def _say_environment(self, args: argparse.Namespace, attached: Any, device: str) -> None:
        changes, unset = attached.changes()
        if args.json:
            link = attached.checked.report()
            ids = {"node": attached.node, "grant": attached.grant["id"], "attachment": attached.id}
            print_json({**ids, "env": changes, "unset": list(unset), "cdi": device, "link": link}, indent=None)
        else:
            for line in exports(changes, unset):
                print(line)
            if device:
                print(f"# for containers: --device {device}")
        sys.stdout.flush()

    def _check(self, args: argparse.Namespace) -> int:
        from gpushare.remote.check import sentence
        from gpushare.remote.checking import check

        found = check(args.node, args.nodes, args.carrier, args.tenant, args.link or "tls")
        return answer(args, found.report(), lambda: say(f"{found.kind}: {sentence(found)}"))

    def _list(self, args: argparse.Namespace) -> int:
        if args.node is None:
            found = client(args).remote(since=args.since)
            return answer(args, found, lambda: show(found["attachments"]))
        if args.socket is not None:
            raise UsageError("--socket and NODE both name a node: leave one out")
        from gpushare.remote import nodes
        from gpushare.remote.reach import opened

        with opened(nodes.find(args.node, args.nodes)) as node:
            there = node.client.remote(since=args.since)
            return answer(args, there, lambda: show(there["attachments"]))


@contextlib.contextmanager
def _offered(attached: Any, args: argparse.Namespace) -> Iterator[str]:
    from gpushare.remote.containers import offering

    found, local = attached.contract, attached.local
    with (
        offering.offer(found.name, found.client, args.cdi_name or attached.id, local.port) as offered,
        local.serving(offered.channel),
    ):
        yield offered.device


def _moment(text: str) -> int:
    from gpushare.text import calendar

    return calendar.moment(text, None)


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def exports(changes: Mapping[str, str], unset: tuple[str, ...]) -> list[str]:
    """Returns what a shell is to run for an environment. What LD_LIBRARY_PATH has there already stays behind it."""
    lines = [f"unset {name}" for name in unset]
    for name, value in changes.items():
        more = "${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" if name == "LD_LIBRARY_PATH" else ""
        lines.append(f"export {name}={shlex.quote(value)}{more}")
    return lines


def show(attachments: Any) -> None:
    """Prints the table of attachments."""
    if not attachments:
        say("no attachments")
        return
    titles = ("ATTACHMENT", "GRANT", "FROM", "USER", "CARRIER", "LINK", "RTT", "IN", "OUT", "SINCE", "ENDED", "WHY")
    table(titles, [_row(one) for one in attachments])


def _row(one: Any) -> tuple[object, ...]:
    from gpushare.text.links import round_trip
    from gpushare.text.sentences import DAY, clock

    link = one["link"]
    return (
        one["id"][:8],
        one["grant"],
        one["origin"] or one["address"] or NOTHING,
        user_name(one["uid"]),
        one["carrier"],
        f"{link['kind']} {link['checked']}".strip(),
        round_trip(link["rtt_us"]) if link["rtt_us"] else NOTHING,
        format_size(one["bytes_in"]),
        format_size(one["bytes_out"]),
        clock(one["created_ns"], DAY),
        clock(one["ended_ns"], DAY) if one["ended_ns"] else NOTHING,
        one["ending"] or NOTHING,
    )
