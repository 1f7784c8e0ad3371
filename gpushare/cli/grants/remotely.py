"""`gpushare run --remote NODE`: a program here, with a share of another node's device."""

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpushare.cli.command import print_json, say
from gpushare.cli.grants.attended import Attended, settled, summary
from gpushare.cli.grants.away import ANY, wish
from gpushare.cli.grants.grant import say_rounding, share_request
from gpushare.cli.program import EXIT_GPUSHARE, become, missing
from gpushare.errors import FailedError, GpushareError, RefusedError, UnreachableError
from gpushare.policy.remote.predict import Work
from gpushare.policy.remote.told import link_cost
from gpushare.remote import attaching, nodes, overview
from gpushare.remote.check import sentence
from gpushare.remote.choice import ordered, refusals
from gpushare.remote.nodes import Target
from gpushare.remote.reach import Node, opened
from gpushare.text.units import format_size

_TRIES = 2
"""Of `any`: another node, where the first has been taken meanwhile."""


def run(args: argparse.Namespace, argv: list[str]) -> int:
    """Runs the command beside this process, and returns its exit status."""
    if status := missing(argv):
        return status
    try:
        with _node(args) as (node, attached):
            before = attached.grant
            command = Attended.start(lambda: become(argv, attached.environment(os.environ)))
            if isinstance(command, int):
                return command
            attached.local.start()
            seconds = command.wait()
            attached.local.close()
            _say_what_it_got(node, attached, before, seconds)
    except GpushareError as error:
        return _failed(args, error)
    return command.end()


def _failed(args: argparse.Namespace, error: GpushareError) -> int:
    status = EXIT_GPUSHARE if isinstance(error, FailedError) else error.exit_code
    if args.json:
        print_json({"error": {"code": error.code, "message": str(error)}, "exit_status": status})
    hear(str(error))
    return status


def hear(line: str) -> None:
    """Says a line to the program's user."""
    with contextlib.suppress(OSError):
        say(f"gpushare: {line}", sys.stderr)


@contextlib.contextmanager
def _node(args: argparse.Namespace) -> Iterator[tuple[Node, attaching.Attached]]:
    """Yields the node and the attachment to it that the options ask for. Raises GpushareError."""
    targets = (
        candidates(args.nodes, share_request(args)) if args.remote == ANY else [nodes.find(args.remote, args.nodes)]
    )
    with contextlib.ExitStack() as stack:
        yield _first(stack, targets, args)


def _first(
    stack: contextlib.ExitStack, targets: Sequence[Target], args: argparse.Namespace
) -> tuple[Node, attaching.Attached]:
    for number, target in enumerate(targets, 1):
        try:
            with contextlib.ExitStack() as tried:
                found = tried.enter_context(attached_to(target, args))
                stack.push(tried.pop_all())
                return found
        except (RefusedError, UnreachableError) as error:
            if number == len(targets):
                raise
            hear(f"{target.name}: {error}: trying {targets[number].name}")
    raise AssertionError("there is at least one")


@contextlib.contextmanager
def attached_to(target: Target, args: argparse.Namespace) -> Iterator[tuple[Node, attaching.Attached]]:
    """Attaches to the grant that the options name, or to a new one. Says what the link is like, unless it is good.
    Raises GpushareError."""
    wanted = wish(args)
    with opened(target) as node:
        carrier = attaching.contract(node, wanted.carrier)
        request = {**share_request(args), "wait_seconds": args.wait}
        with (
            attaching.granted(node, request, args.grant) as grant,
            attaching.attached(node, carrier, grant, wanted, hear) as attached,
        ):
            if args.grant is None:
                say_rounding(grant, args.memory)
            if attached.checked.kind != "good":
                kind = "slower than poor" if attached.checked.kind == "refused" else attached.checked.kind
                hear(f"the link to {node.name} is {kind}: {sentence(attached.checked)}")
            yield node, attached


def candidates(file: Path | None, request: Mapping[str, Any]) -> list[Target]:
    """Returns the nodes of the list to try for a share, the best first. Raises RefusedError where it fits on none."""
    from gpushare.client.verbs import fields

    known = nodes.table(file)
    asked = overview.ask(list(known.values()), overview.CHOICE_SECONDS, fields(request))
    found = [one.candidate() for one in asked]
    if best := ordered(found):
        return [known[one.name] for one in best[:_TRIES]]
    raise RefusedError(f"no node takes it: {refusals(found)}")


def _say_what_it_got(node: Node, attached: attaching.Attached, before: Any, seconds: float) -> None:
    try:
        after = settled(node.client, before["id"])
    except GpushareError as error:
        hear(f"what it got is not known: {error}")
    else:
        hear(f"{summary(before, after, seconds)}; {link_line(attached, before, after, seconds)}")


def link_line(attached: attaching.Attached, before: Any, after: Any, seconds: float) -> str:
    """What the link was, and what it cost the program where the node has counted its calls."""
    up, down = attached.local.moved()
    sent = f"{format_size(up)} there and {format_size(down)} back"
    if "sync_calls" not in after:
        return f"link {sentence(attached.checked)}, {sent}"
    names = ("sync_calls", "host_bytes_in", "host_bytes_out")
    work = Work(*(after[name] - before.get(name, 0) for name in names))
    return f"{link_cost(work, seconds, attached.checked.path)}, {sent}"
