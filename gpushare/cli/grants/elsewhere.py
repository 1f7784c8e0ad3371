"""`gpushare plan --remote`: how much slower a program would be on devices of other nodes."""

import argparse
from typing import Any

from gpushare.cli.command import answer, client, say_each
from gpushare.errors import GpushareError, RefusedError, UnreachableError, UsageError
from gpushare.policy.remote import predict, told
from gpushare.policy.remote.predict import Work
from gpushare.policy.remote.told import Node
from gpushare.remote import checking


def plan(args: argparse.Namespace) -> int:
    """Checks the link to each node, and predicts what it would cost the programs of a grant of this one."""
    grant = client(args).grant(args.like)
    done, seconds = did(grant)
    nodes = [_checked(name) for name in dict.fromkeys(args.remote)]
    found = {
        "grant": grant["id"],
        "sync_calls_per_second": done.sync_calls / seconds,
        "bytes_in_per_second": done.bytes_in / seconds,
        "bytes_out_per_second": done.bytes_out / seconds,
        "nodes": [_row(done, seconds, node) for node in nodes],
    }
    answer(args, found, lambda: say_each(told.predictions(done, seconds, nodes)))
    return 0 if any(node.path is not None for node in nodes) else UnreachableError.exit_code


def did(grant: Any) -> tuple[Work, float]:
    """What the programs of a grant did so far, and in how many seconds. Raises RefusedError where it is nothing."""
    seconds = grant["running_ns"] / 1e9
    if not seconds:
        name = grant["id"]
        raise RefusedError(f"grant {name} has not used its device yet, so nothing says how its programs do: run them")
    return Work(grant["sync_calls"], grant["host_bytes_in"], grant["host_bytes_out"]), seconds


def _checked(name: str) -> Node:
    try:
        return Node(name, checking.check(name).path)
    except UsageError:
        raise
    except GpushareError as error:
        return Node(name, None, str(error))


def _row(done: Work, seconds: float, node: Node) -> dict[str, Any]:
    if node.path is None:
        return {"node": node.name, "trouble": node.trouble}
    slowdown = predict.slowdown(done, seconds, node.path)
    return {"node": node.name, "slowdown": slowdown, **{name: getattr(node.path, name) for name in _LINK}}


_LINK = ("rtt_us", "up_bps", "down_bps")
