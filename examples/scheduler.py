"""A scheduler in a page: starts each job on the node where it would wait least, and those that fit nowhere later.

    python examples/scheduler.py --node /run/gpushare/node.sock jobs.json

`--node` may be given several times; of a node elsewhere it is a socket that ssh forwards (`ssh -L here:there`), and
what starts the command is then whatever starts commands there. jobs.json: `[{"name": "a", "memory": "4GiB", "time":
"30%", "command": ["python", "train.py"]}, ...]`. Prints what it does; exits with 1 where a job failed.
"""

import argparse
import asyncio
import json
import sys
from typing import Any

from gpushare.aio import AsyncClient
from gpushare.errors import GpushareError, RefusedError

Job = dict[str, Any]


class Scheduler:
    def __init__(self, nodes: list[AsyncClient]) -> None:
        self.nodes = nodes
        self.changed = asyncio.Event()  # something may fit now that did not; each change sets it and puts a new one

    async def watch(self, node: AsyncClient) -> None:
        async for event in node.follow():
            if event["type"] in ("listed", "changed", "removed"):
                self.changed.set()
                self.changed = asyncio.Event()

    async def place(self, job: Job) -> tuple[AsyncClient, str]:
        """The node and the grant. The key makes one grant of one job, however often this is asked."""
        request = {"memory": job["memory"], "time": job["time"], "key": job["name"], "keep": True}
        said = False
        while True:
            changed = self.changed
            fitting = []
            for number, node in enumerate(self.nodes):
                try:
                    plan = await node.plan(**request)
                except GpushareError as error:
                    print(f"{node.path}: {error}", file=sys.stderr)
                    continue
                if plan["fits"]:
                    fitting.append((plan["wait_ms"]["p99"] if plan["wait_ms"] else 0, number, node))
            for _, _, node in sorted(fitting, key=lambda found: found[:2]):
                try:
                    return node, (await node.create(**request))["id"]
                except RefusedError:
                    pass  # somebody was quicker
            if not said:
                print(f"{job['name']} waits", flush=True)
                said = True
            await changed.wait()

    async def run(self, job: Job) -> int:
        node, grant = await self.place(job)
        print(f"{job['name']} runs in {grant} on {node.path}", flush=True)
        try:
            gpushare = [sys.executable, "-m", "gpushare", "run", "--socket", str(node.path), "--grant", grant, "--"]
            process = await asyncio.create_subprocess_exec(*gpushare, *job["command"])
            status = await process.wait()
        finally:
            await node.release(grant)
        print(f"{job['name']} ended with {status}", flush=True)
        return status


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--node", action="append", required=True, metavar="SOCKET")
    parser.add_argument("jobs", type=argparse.FileType())
    args = parser.parse_args()
    scheduler = Scheduler([AsyncClient(path) for path in args.node])
    watches = [asyncio.create_task(scheduler.watch(node)) for node in scheduler.nodes]
    statuses = await asyncio.gather(*(scheduler.run(job) for job in json.load(args.jobs)))
    for watch in watches:
        watch.cancel()
    await asyncio.gather(*watches, return_exceptions=True)
    for node in scheduler.nodes:
        await node.close()
    return int(any(statuses))


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
