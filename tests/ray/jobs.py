"""A Ray driver on a node of its own, with tasks that keep a device busy. Obeys commands on stdin, one per line.

Arguments: a directory for Ray's files, and the program that keeps a device busy.
"""

import json
import subprocess
import sys
from typing import Any

import ray

from gpushare.adapters.ray import share

DIRECTORY, SPIN = sys.argv[1:]
MIB = 1 << 20


def spin() -> None:
    """Keeps a device busy until the worker ends, which closes the pipe."""
    with subprocess.Popen([SPIN, "--alloc", "1GiB"], stdin=subprocess.PIPE, text=True) as process:
        print("run 200000 100", file=process.stdin, flush=True)
        process.wait()


@ray.remote
class Actor:
    def grant(self) -> str:
        import os

        return os.environ["GPUSHARE_GRANT_DIR"]

    def gpus(self) -> list[str]:
        return [str(one) for one in ray.get_gpu_ids()]


def task(num_gpus: float, **more: Any) -> Any:
    return ray.remote(**share(num_gpus, **more))(spin).options(max_retries=0).remote()


def failure(**options: Any) -> str:
    """Returns why a task with these options does not start."""
    bare = "runtime_env" in options
    try:
        ray.get(ray.remote(**(options if bare else share(**options)))(spin).remote(), timeout=60)
    except ray.exceptions.RuntimeEnvSetupError as error:
        return str(error)
    return "it ended"


def main() -> None:
    ray.init(
        num_cpus=4,
        num_gpus=2,
        include_dashboard=False,
        object_store_memory=80 * MIB,
        _temp_dir=DIRECTORY,
        _node_ip_address="127.0.0.1",
    )
    made: list[Any] = []
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        word, *arguments = json.loads(line)
        answer: Any = None
        if word == "task":
            made.append(task(**arguments[0]))
        elif word == "cancel":
            ray.cancel(made[arguments[0]], force=True)
        elif word == "actor":
            made.append(Actor.options(**share(**arguments[0])).remote())
            answer = ray.get([made[-1].grant.remote(), made[-1].gpus.remote()])
        elif word == "fails":
            answer = failure(**arguments[0])
        elif word == "kill":
            ray.kill(made[arguments[0]])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
