"""`gpushare` alone: what this node lacks, and the first commands to run."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpushare import __version__, advice
from gpushare.cli.command import is_closed_to_user

if TYPE_CHECKING:
    from gpushare.client import Client

Step = tuple[str, str]
"""A command, and its purpose."""
_FIRST = "gpushare run --simulate -- nvidia-smi", "a command on a simulated device: needs no GPU, no root, no daemon"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _on_a_node(grants: list[Any]) -> Iterator[Step]:
    from gpushare.engines import configuration
    from gpushare.engines.edit import Options

    for one in configuration.status(Options(), None):
        if not one.configured:
            command = advice.gpushare(f"runtime configure --engine {one.engine} --restart")
            yield command, f"{one.engine} gives no shares yet"
    if not grants:
        yield "gpushare run --memory 4GiB --time 30% -- python3 train.py", "a program in a share"
    else:
        yield "gpushare top", "who uses the devices now"
    yield "gpushare ps", "who has what, and uses it"
    if grants:
        yield "gpushare why", "who holds idle devices, who waits for whom"


def _shut_out(path: Path) -> Iterator[Step]:
    import grp
    import pwd

    try:
        group = grp.getgrgid(path.stat().st_gid).gr_name
        user = pwd.getpwuid(os.geteuid()).pw_name
    except (KeyError, OSError):  # no such name, or the directory is not accessible
        group, user = "root", ""
    if group == "root":
        yield advice.gpushare("ps"), "root alone may talk to this daemon"
    else:
        yield f"sudo usermod -aG {group} {user}", "then log in again: members of the group may talk to the daemon"
    yield _FIRST


def _without_a_daemon() -> Iterator[Step]:
    if advice.unit() is not None and not advice.systemd_runs():
        yield advice.gpushare("daemon"), "this node is installed, without systemd to start its daemon"
        return
    if advice.unit() is not None:
        yield advice.as_root("systemctl start gpushare"), "this node is installed, and its daemon does not run"
        yield "journalctl -u gpushare", "why it does not, where it ended"
        return
    yield _FIRST
    yield advice.gpushare("demo"), "two containers share a simulated device: needs no GPU, changes nothing"
    yield advice.gpushare("install"), "makes this machine a node: unit, group, configuration"
    yield advice.gpushare("daemon --simulate 1x16GiB"), "or a daemon by hand, here with a simulated device"


def _steps(client: "Client") -> tuple[str, Iterator[Step]]:
    """Returns the state of this node, and the next steps."""
    from gpushare.errors import GpushareError

    try:
        devices, grants = client.devices(), client.grants()
    except GpushareError as error:
        return str(error), _shut_out(client.path) if is_closed_to_user(client.path) else _without_a_daemon()
    kind = "simulated device" if any(device["backend"] == "simulated" for device in devices) else "device"
    found = f"{_counted(len(devices), kind)}, {_counted(len(grants), 'grant')}"
    return f"The daemon at {client.path} answers: {found}.", _on_a_node(grants)


def show() -> None:
    """Prints the state of this node and the next steps."""
    from gpushare.client import Client

    print(f"gpushare {__version__}: exact shares of NVIDIA GPUs for many containers on one node\n")
    state, steps = _steps(Client())
    print(f"{state}\n")
    for command, what in (*steps, ("gpushare doctor", "what else is missing here"), ("gpushare --help", "all verbs")):
        print(f"  {command}\n      {what}")
