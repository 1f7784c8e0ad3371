"""gpushare nodes"""

import argparse
from typing import TYPE_CHECKING, Any

from gpushare.cli.command import NOTHING, Command, add_json, answer, say, table
from gpushare.cli.grants.away import add_nodes
from gpushare.cli.grants.moving import seconds
from gpushare.cli.parser import Parser
from gpushare.text.units import format_size, format_time

if TYPE_CHECKING:
    from gpushare.remote.overview import Facts


class NodesCommand(Command):
    """what the nodes in nodes.toml have free

    Asks all of them at once, by ssh: memory and time that nobody is guaranteed, the carriers that a program of this
    machine could use (`gpushare run --remote`), and how good this machine's last link there was.
    """

    examples = (
        ("gpushare nodes", "all nodes that you or this site have written down"),
        ("gpushare nodes --nodes ./nodes.toml --json", "those of another list, as JSON"),
    )

    def prepare_parser(self, parser: Parser) -> None:
        parser.epilog = (
            'a node in nodes.toml: [nodes.gpu1] and, if ssh needs more than that name, target = "ssh:me@gpu1.example";'
            ' unix:/PATH is one on this machine. Also: socket = "/PATH" of its daemon, relay = "HOST:PORT" where its'
            ' relay is reached from here, labels = { rack = "r1" }'
        )
        parser.option("--wait", "S", "how long to wait for answers, as 1s (default %(default)gs)", seconds, default=1.0)
        add_nodes(parser)
        add_json(parser)

    def run(self, args: argparse.Namespace) -> int:
        from gpushare.remote import nodes, overview

        known = nodes.table(args.nodes)
        facts = overview.ask(list(known.values()), args.wait)
        return answer(args, {"nodes": [_json(one) for one in facts]}, lambda: _show(facts))


def _show(facts: "list[Facts]") -> None:
    if not facts:
        say("no nodes: write them in ~/.config/gpushare/nodes.toml, as [nodes.NAME] (see `gpushare nodes --help`)")
        return
    titles = ("NODE", "DEVICES", "FREE MEMORY", "FREE TIME", "CARRIERS", "RELAY", "LINK", "STATE")
    table(titles, [_row(one) for one in facts])


def _row(one: "Facts") -> tuple[object, ...]:
    if one.trouble:
        return (one.target.name, *[NOTHING] * 6, one.trouble)
    return (
        one.target.name,
        len(one.usable),
        f"{format_size(one.free('memory'))} of {format_size(one.whole('memory'))}",
        f"{format_time(one.free('time'))} of {format_time(one.whole('time'))}",
        ", ".join(one.carriers) or NOTHING,
        one.relay or NOTHING,
        _link(one.link),
        one.refusal() or "ready",
    )


def _link(link: Any) -> str:
    from gpushare.text.links import round_trip

    if link is None or not (link["checked"] or link["rtt_us"]):
        return NOTHING
    return f"{link['checked']} {round_trip(link['rtt_us']) if link['rtt_us'] else ''}".strip()


def _json(one: "Facts") -> dict[str, Any]:
    target, link = one.target, one.link
    return {
        "name": target.name,
        "target": f"ssh:{target.host}" if target.host else f"unix:{target.socket}",
        "labels": dict(target.labels),
        "trouble": one.trouble,
        "devices": len(one.usable),
        "memory_free_bytes": one.free("memory"),
        "memory_bytes": one.whole("memory"),
        "time_free_milli": one.free("time"),
        "time_milli": one.whole("time"),
        "relay": one.remote.get("relay"),
        "reason": "" if one.trouble else one.refusal(),
        "carriers": one.carriers,
        "link": None if link is None else {"checked": link["checked"], "rtt_us": link["rtt_us"]},
    }
