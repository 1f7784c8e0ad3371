"""Places one job on several nodes, all or nothing: a share on each, prepared on all of them, then committed.

    python examples/gang.py --node /run/gpushare/node.sock --node /tmp/other.sock --memory 4GiB --time 30% job-7

Of a node elsewhere, `--node` is a socket that ssh forwards (`ssh -L here:there`). Prints a line `NODE GRANT` for each;
the grants stay until they are released. Exits with 3 where a node says no, and then holds nothing on any of them.
"""

import argparse
import asyncio
import secrets
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from gpushare.aio import AsyncClient
from gpushare.errors import GpushareError, RefusedError, UnreachableError

Part = dict[str, Any]
TTL_SECONDS = 30
TRIES = 5


async def insist(call: Callable[[], Awaitable[Part]]) -> Part:
    """The answer. A call that may have been lost is made again: the node knows whether it had come."""
    for _ in range(TRIES - 1):
        try:
            return await call()
        except UnreachableError:
            await asyncio.sleep(0.2)
    return await call()


async def on_all(
    nodes: list[AsyncClient], call: Callable[[AsyncClient], Awaitable[Part]]
) -> list[Part | BaseException]:
    """What each node answered, or what went wrong there."""
    return await asyncio.gather(*(insist(lambda node=node: call(node)) for node in nodes), return_exceptions=True)


def failures(nodes: list[AsyncClient], answers: list[Part | BaseException]) -> list[str]:
    """What went wrong, by node."""
    return [f"{node.path}: {one}" for node, one in zip(nodes, answers, strict=True) if isinstance(one, BaseException)]


async def place(nodes: list[AsyncClient], job: str, request: dict[str, Any]) -> list[Part]:
    """The job's part on each node. Raises RefusedError where one of them said no: then nothing is held."""
    attempt = f"{job}.{secrets.token_hex(4)}"  # an id is used once
    answers = await on_all(nodes, lambda node: node.prepare(attempt, [request], ttl_seconds=TTL_SECONDS))
    if said := failures(nodes, answers):
        # All of them: what was asked of one that did not answer may still come to it.
        await on_all(nodes, lambda node: node.abort(attempt))
        raise RefusedError("; ".join(said))
    answers = await on_all(nodes, lambda node: node.commit(attempt))
    if said := failures(nodes, answers):
        # Too late for one: those that are committed give their grants back, the others expire at the latest.
        await on_all(nodes, lambda node: give_back(node, attempt))
        raise RefusedError("; ".join(said))
    return [one for one in answers if not isinstance(one, BaseException)]


async def give_back(node: AsyncClient, attempt: str) -> Part:
    """Ends the part, whether it is committed or not."""
    try:
        part: Part = await node.abort(attempt)
    except RefusedError:
        part = await node.commit(attempt)  # it is: this says which grants it has
        for grant in part["grants"]:
            await node.release(grant["id"])
    return part


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--node", action="append", required=True, metavar="SOCKET")
    parser.add_argument("--memory", required=True)
    parser.add_argument("--time", required=True)
    parser.add_argument("job")
    args = parser.parse_args()
    nodes = [AsyncClient(path) for path in args.node]
    # Its ranks wait for each other: leases on one node are not taken from it for others while the rest runs elsewhere.
    request = {"memory": args.memory, "time": args.time, "keep": True, "gang": f"{args.job}:{len(nodes)}"}
    try:
        for node, part in zip(nodes, await place(nodes, args.job, request), strict=True):
            for grant in part["grants"]:
                print(node.path, grant["id"])
    except GpushareError as error:
        print(f"{args.job} is not placed: {error}", file=sys.stderr)
        return error.exit_code
    finally:
        for node in nodes:
            await node.close()
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
