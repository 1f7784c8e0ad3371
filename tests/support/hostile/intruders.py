"""Hostile programs in containers: how tests start them, talk to them, and find their grants."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from run import built
from run.running import Daemon
from run.waiting import until

ATTACK = Path(__file__).parent / "attack.py"
MIB = 1 << 20
PYTHON = "/usr/bin/python3"
DRIVER = "/run/gpushare/self/driver/libcuda.so.1"
PROGRAMS = "/tmp/programs"  # in the container
SHARED = "/tmp/shared"

Change = Callable[[dict[str, Any]], None]


def words(*attack: object) -> list[str]:
    """The command line that runs a trick of attack.py."""
    return [PYTHON, "-c", ATTACK.read_text(), *map(str, attack)]


def program(name: str, *arguments: object) -> list[str]:
    """The command line of a test program; needs `with_programs`."""
    return [f"{PROGRAMS}/{name}", *map(str, arguments)]


def with_programs(config: dict[str, Any]) -> None:
    """The container gets the directory of test programs."""
    _bind(config, built.program("newlinkmap").parent, PROGRAMS, "ro")


def with_shared(directory: Path) -> Change:
    """The container gets a directory, which other containers may share."""
    return lambda config: _bind(config, directory, SHARED, "rw")


def _bind(config: dict[str, Any], host: Path, container: str, mode: str) -> None:
    options = ["rbind", mode, "rprivate"]
    config["mounts"].append({"destination": container, "type": "bind", "source": str(host), "options": options})


def capable(*names: str) -> Change:
    """The container's program has these capabilities."""

    def change(config: dict[str, Any]) -> None:
        config["process"]["capabilities"] = {kind: list(names) for kind in ("bounding", "effective", "permitted")}

    return change


def tried(runc: Any, *command: str, share: dict[str, str], change: Change = lambda config: None) -> Any:
    """Runs a program in its own container; returns the last line that it printed, parsed."""
    done = runc.run(*command, annotations=share, change=change)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


class Intruder:
    """A hostile program that keeps running. It prints JSON lines."""

    def __init__(self, process: "subprocess.Popen[str]", removal: list[str]) -> None:
        self.process, self._removal = process, removal

    def hear(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"it ended: {self.process.stderr.read() if self.process.stderr else ''}"
        return json.loads(line)

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        os.write(self.process.stdin.fileno(), f"{line}\n".encode())  # unbuffered: nothing left to flush later

    def tell(self, line: str) -> Any:
        self.say(line)
        return self.hear()

    def remove(self) -> None:
        """Ends its container, whatever the program does."""
        subprocess.run(self._removal, capture_output=True)
        self.process.kill()
        self.process.communicate()


@contextmanager
def intruder(
    runc: Any, *command: str, share: dict[str, str] | None, change: Change = lambda config: None
) -> Iterator[Intruder]:
    """A container with a hostile program, which should end when its standard input does. The container is removed if it
    does not, as the program may be stopped."""
    with runc.start(*command, annotations=share, change=change) as process:
        one = Intruder(process, [*runc.wrapper, "delete", "--force", runc.names[-1]])
        try:
            yield one
            if process.poll() is None:
                process.communicate("", timeout=30)
        finally:
            if process.poll() is None:
                one.remove()


def running_grant(node: Daemon, but: str = "") -> dict[str, Any]:
    """The grant of a running container, other than `but`."""

    def found() -> dict[str, Any] | None:
        return next((one for one in node.client.grants() if one["pid"] and one["id"] != but), None)

    return dict(until(found, "the container runs", 20))


def most(node: Daemon) -> int:
    """The most bytes of device 0 that any process ever had, the daemon's own attempts included."""
    return max(row["peak_bytes"] for row in node.books()["processes"])
