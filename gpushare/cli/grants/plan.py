"""gpushare plan"""

import argparse
from typing import Any

from gpushare.cli.command import Command, add_common, answer, client, say_each
from gpushare.cli.grants.grant import add_share_options, share_request
from gpushare.cli.parser import Parser
from gpushare.errors import RefusedError, UsageError
from gpushare.text.units import PAGE, format_size, format_time


class PlanCommand(Command):
    """whether a share would fit, and who would lose; changes nothing

    Prints where it would be placed, how long similar grants waited there, and which grants would lose what they borrow.
    With --remote and --like: how much slower the programs of a grant here would be if they used a device of another
    node over the network.
    """

    examples = (
        ("gpushare plan --memory 8GiB --time 30%", "where it would go, and which grants would lose borrowed time"),
        ("gpushare plan --memory 8GiB --time 30% --devices 2 --json", "two devices near each other, as JSON"),
        ("gpushare plan --remote gpu1 --remote gpu9 --like g-1a2b3c", "how much slower that grant's programs would be"),
    )

    def prepare_parser(self, parser: Parser) -> None:
        parser.epilog = "exit status: 0 if it fits, 3 if not; with --remote 4 if no node can be reached"
        add_share_options(parser, instead="--remote")
        parser.option(
            "--remote",
            "NODE",
            "instead of a share: a node whose devices would be used over the network, as in `gpushare run --remote`;"
            " several are compared",
            action="append",
        )
        parser.option(
            "--like",
            "GRANT",
            "only with --remote: the grant whose programs say how often they wait and how much they copy",
        )
        add_common(parser)

    def run(self, args: argparse.Namespace) -> int:
        if args.remote or args.like:
            return _elsewhere(args)
        if args.memory is None or args.time is None:
            raise UsageError("give --memory and --time, or --remote NODE and --like GRANT (see `gpushare plan --help`)")
        found = client(args).plan(**share_request(args))
        answer(args, found, lambda: say_each(sentences(found, args.tenant or "default")))
        return 0 if found["fits"] else RefusedError.exit_code


def _elsewhere(args: argparse.Namespace) -> int:
    if not (args.remote and args.like):
        raise UsageError("--remote NODE says where, --like GRANT what the program is like: give both")
    if args.memory is not None or args.time is not None:
        raise UsageError("--remote and --like predict the cost of a link: leave out --memory and --time")
    from gpushare.cli.grants.elsewhere import plan  # here: few need what it imports

    return plan(args)


def sentences(plan: Any, tenant: str) -> list[str]:
    """Returns a plan as text for people."""
    if not plan["fits"]:
        return [f"does not fit: {reason}" for reason in plan["reasons"]] + _later(plan)
    lines = [
        f"fits on device {device['index']} ({device['id']}): {_gets(device, tenant)}"
        + (f"; {device['why']}" if device["why"] else "")
        for device in plan["devices"]
    ]
    if (wait := plan["wait_ms"]) is not None:
        kind = "borrow" if plan["class"] == "borrow" else "are guaranteed their time"
        lines.append(
            f"grants there that {kind} waited {wait['p50']:.1f} ms in the median, {wait['p99']:.1f} ms in 99 of 100"
            f" ({wait['waits']} waits)"
        )
    else:
        lines.append("no such grant has waited there yet, so nothing says how long this one would")
    lines += [_victim(victim) for victim in plan["victims"]]
    return lines


def _later(plan: Any) -> list[str]:
    """What would have to happen so that it fits."""
    lines = [_asked(one) for one in plan["victims"]]
    if moved := plan["moved"]:
        size, names = format_size(sum(one["memory_bytes"] for one in moved)), ", ".join(one["grant"] for one in moved)
        grants = "1 idle grant is moved" if len(moved) == 1 else f"{len(moved)} idle grants are moved"
        seconds = f"about {plan['making_room_seconds']:.1f} s"
        lines.append(f"would fit after {grants} to host memory ({size}, {seconds}): {names}")
    return lines


def _gets(device: Any, tenant: str) -> str:
    memory, asked, guaranteed = format_size(device["memory_bytes"]), device["time_milli"], device["guaranteed_milli"]
    if device["memory_bytes"] < (wanted := device["memory_asked_bytes"]):
        memory += f" ({format_size(wanted)} in whole pages of {format_size(PAGE)})"
    if not asked:
        return f"{memory} of memory, and the time that others leave idle"
    gets, of = f"{memory} of memory and {format_time(asked)} of its time", f"the guarantee of {tenant}"
    if guaranteed == asked:
        return f"{gets}, all out of {of}"
    if not guaranteed:
        return f"{gets}, all borrowed: nothing is left of {of}"
    return f"{gets}, {format_time(guaranteed)} out of {of}, {format_time(asked - guaranteed)} borrowed"


_RULES = {
    "guarantee": "what this request is guaranteed",
    "tier": "the higher tier of this request",
    "weight": "what is lent is split by weight",
}


def _asked(victim: Any) -> str:
    then = ", and ended after its grace" if victim["max_rung"] == "kill" else ""
    return (
        f"{victim['grant']} of {victim['tenant']} would be asked ({victim['rung']}) for the"
        f" {format_size(victim['memory_bytes'])} that it has on loan on device {victim['index']}{then}"
    )


def _victim(victim: Any) -> str:
    who, lost = f"{victim['grant']} of {victim['tenant']}", format_time(victim["time_milli"])
    why = _RULES.get(victim["rule"], victim["rule"])
    return f"{who} would lose {lost} that it borrows on device {victim['index']} ({victim['rung']}): {why}"
