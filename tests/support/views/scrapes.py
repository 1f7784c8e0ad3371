"""A daemon with two simulated devices, a grant in a pod's container, and the adapter that shows its metrics."""

import contextlib
import functools
import json
import re
import subprocess
import sys
from pathlib import Path

from run.running import SPIN, Daemon

QUICK = """
import gpushare.adapters.prometheus.server as server
server.ANSWER_SECONDS = 0.05
from gpushare.cli.main import entry
entry()
"""
JOINER = Path(__file__).parents[1] / "run/joiner.py"
HOSTILE = 'a"b\\c\nd'
POD = {
    "io.kubernetes.pod.namespace": "lab",
    "io.kubernetes.pod.name": "train-0",
    "io.kubernetes.container.name": "main",
    "io.kubernetes.pod.uid": HOSTILE,
}
SAMPLE = re.compile(r'(\w+)(?:\{((?:\w+="(?:[^"\\]|\\.)*",?)*)\})? (\S+)')


def samples(text: str) -> list[tuple[str, dict[str, str], float]]:
    found = []
    for line in text.splitlines():
        if not line.startswith("#"):
            name, labels, value = SAMPLE.fullmatch(line).groups()
            found.append((name, dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels or "")), float(value)))
    return found


class Site:
    def __init__(self, directory: Path) -> None:
        self.daemon = Daemon(directory / "state", "2x4GiB")
        self.daemon.quicken(health=0.05).start()
        self.client = self.daemon.client
        self.processes: list[subprocess.Popen[str]] = []
        self.pod = self.container(POD)

    def container(self, annotations: object) -> str:
        """A grant with a container, which is just a process here; returns the grant's id."""
        grant = self.client.create(memory="1GiB", time="10%", keep=True)["id"]
        body = {"pid": self.spawn("sleep", "1000").pid, "annotations": annotations}
        self.client.call("POST", f"/v1/hooks/create-runtime?grant={grant}", body)
        return str(grant)

    def spawn(self, *command: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=self.daemon.env
        )
        self.processes.append(process)
        return process

    def work(self, seconds: float, **options: str) -> subprocess.Popen[str]:
        return self.spawn(*self.daemon.run("1GiB", "40%", str(SPIN), "--seconds", str(seconds), **options))

    def hold(self) -> None:
        """A process that holds memory and does not compute."""
        process = self.spawn(*self.daemon.run("1GiB", "10%", sys.executable, str(JOINER)))
        assert process.stdout.readline().startswith("joined")
        process.stdin.write("hold 1000000\n")
        process.stdin.flush()
        assert process.stdout.readline() == "held\n"

    @functools.cached_property
    def adapter(self) -> str:
        """The address of the adapter, which is started at the first use."""
        options = ("--socket", str(self.daemon.layout.socket), "--listen", "127.0.0.1:0", "--dcgm-names")
        process = self.spawn(sys.executable, "-c", QUICK, "adapter", "prometheus", *options)
        address = process.stdout.readline().strip()
        assert address.endswith("/metrics")
        return address

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()
        with contextlib.suppress(Exception):
            self.client.release(self.pod)
        self.daemon.stop()


def dashboard() -> list[tuple[str, str]]:
    """(panel title, expression) for each expression in the Grafana dashboard."""
    path = Path(__file__).parents[3] / "packaging/grafana/gpushare.json"
    return [
        (panel["title"], re.sub(r"\$(?:node|tenant|gpu)\b", ".*", target["expr"].replace("$__rate_interval", "1m")))
        for panel in json.loads(path.read_text())["panels"]
        for target in panel.get("targets", ())
    ]
