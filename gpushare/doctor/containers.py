"""Containers that run without the share that they asked for, and programs in a share that never joined it."""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from gpushare.client import Client
from gpushare.doctor import aside, processes
from gpushare.doctor.finding import Check, Finding, read, shortened
from gpushare.errors import GpushareError
from gpushare.paths import CONTAINER_SELF

NO_ANSWER = Check(
    "containers",
    "wrong",
    "the state of a container below {run} cannot be read",
    "look for a file system that does not answer (df), and unmount it",
    "It is not known then which containers run without their share.",
)
WITHOUT_SHARE = Check(
    "container {id}",
    "wrong",
    "process {pid} asked for a share by annotation and runs without one: no hook of ours was called",
    "`gpushare runtime status` says whether its engine is configured; then start it anew",
    "It finds no GPU, or uses one without being counted. Found in the state files of runc and crun.",
)
GRANT_ENDED = Check(
    "container {id}",
    "wrong",
    "process {pid} was started in {grant}, which has ended: it gets no device time",
    "stop it, or start it anew",
    "Nothing gives it device time any more.",
)
HANGS = Check(
    "hostile process",
    "wrong",
    "process {pids} lets whoever looks at its memory wait",
    "look at it by `gpushare grant show {grant}`",
    "It maps files of a file system that does not answer, which no ordinary program does.",
)
NOT_JOINED = Check(
    "grant {grant}",
    "wrong",
    "process {pid} {has}, but has not joined: neither its memory nor its time is counted",
    "a static program, or one without the preload; see docs/security/limits.md. gpushare grant release {grant}",
    "It is in the grant's cgroup and uses the device outside the grant's share.",
)
MUSL = Check(
    "musl image",
    "note",
    "{grants}: programs on musl, for which there is no CUDA: they never join their share",
    "use an image with glibc for programs that use the GPU",
    "NVIDIA's driver is built for glibc only.",
)

BLIND = Check(
    "grant {grant}",
    "note",
    "process {pid} does not see the files of its grant: its mounts are of its own, and older than the grant's",
    "start it without mounts of its own: with `nsenter --net=FILE` instead of `ip netns exec`, which makes them",
    "It finds no driver. What else makes such mounts: `unshare --mount`, sandboxes such as bubblewrap, other roots.",
)

# Where runc and crun keep a directory per container, by engine; all belong to root.
_STATES = ("runc/*", "crun/*", "containerd/runc/*/*", "docker/runtime-*/*/*", "docker/runtime-*/*")
_JOIN_SECONDS = 0.5
_ASK = ("gpushare.dev/memory", "gpushare.dev/time")


@dataclass(frozen=True, slots=True)
class Container:
    """A running container. `own`: the host path of what it has mounted at CONTAINER_SELF; empty: nothing."""

    id: str
    pid: int
    asks_for_share: bool
    own: str


def without_share(grants: list[Any] | None, run: Path = Path("/run")) -> Iterator[Finding]:
    """Yields findings about containers. `grants`: of the daemon; None if it does not answer."""
    found, complete = aside.rows(lambda: (astuple(one) for one in running(run)))
    for row in found:
        yield from _asked(Container(*row), grants)
    if not complete:
        yield NO_ANSWER(run=run)


def _asked(container: Container, grants: list[Any] | None) -> Iterator[Finding]:
    name = container.id[:24]
    if container.asks_for_share and not container.own:
        yield WITHOUT_SHARE(id=name, pid=container.pid)
    elif container.own and grants is not None:
        grant = Path(container.own).parent.name
        if grant.startswith("g-") and grant not in {one["id"] for one in grants}:
            yield GRANT_ENDED(id=name, pid=container.pid, grant=grant)


def running(run: Path) -> Iterator[Container]:
    """Running containers of runc and crun, under any engine."""
    for pattern in _STATES:
        for directory in sorted(run.glob(pattern)):
            for name, parse in (("state.json", _of_runc), ("status", _of_crun)):
                text = read(directory / name)
                if text is None:
                    continue
                try:
                    container = parse(directory, json.loads(text))
                except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                    continue  # the state of another program
                if Path(f"/proc/{container.pid}").exists():
                    yield container


def _ask_for_share(names: list[str]) -> bool:
    return any(name.casefold() in _ASK for name in names)


def _of_runc(directory: Path, state: dict[str, Any]) -> Container:
    labels = [str(label).partition("=")[0] for label in state["config"].get("labels") or ()]
    mounts = state["config"].get("mounts") or ()
    own = next((str(one["source"]) for one in mounts if one.get("destination") == CONTAINER_SELF), "")
    return Container(directory.name, int(state["init_process_pid"]), _ask_for_share(labels), own)


# The bundle, and what crun has copied of it, may belong to a user, so this is called in a child process.
def _of_crun(directory: Path, state: dict[str, Any]) -> Container:
    text = read(directory / "config.json") or read(Path(state["bundle"]) / "config.json")
    config = json.loads(text or b"{}")
    mounts = config.get("mounts") or ()
    own = next((str(one["source"]) for one in mounts if one.get("destination") == CONTAINER_SELF), "")
    return Container(directory.name, int(state["pid"]), _ask_for_share(list(config.get("annotations") or {})), own)


def unjoined(client: Client, grants: list[Any]) -> Iterator[Finding]:
    """Yields findings about programs in the cgroups of grants that use a device outside their share."""
    cgroups = processes.cgroups()
    own = cgroups.get(os.getpid(), "/")
    members: dict[int, str] = {}
    for grant in grants:
        group = cgroups.get(grant["pid"] or 0, "/")
        if group not in ("/", own):  # otherwise the grant has no cgroup of its own
            inside = (pid for pid, other in cgroups.items() if f"{other}/".startswith(f"{group}/"))
            members.update(dict.fromkeys(inside, grant["id"]))
    seen, hang = processes.look(sorted(members))
    if hang:
        yield HANGS(pids=shortened(list(map(str, hang))), grant=members[hang[0]])
    suspects = {pid for pid, one in seen.items() if one.device or one.has_driver}
    joined = _joined(client, suspects)
    for pid in sorted(suspects - joined):
        has = f"has {seen[pid].device} open" if seen[pid].device else "has the driver loaded"
        yield NOT_JOINED(grant=members[pid], pid=pid, has=has)
    for pid in sorted(pid for pid, one in seen.items() if one.is_blind and pid not in suspects):
        yield BLIND(grant=members[pid], pid=pid)
    musl = sorted({members[pid] for pid, one in seen.items() if one.is_on_musl and pid not in joined})
    if musl:
        yield MUSL(grants=shortened(musl))


def _joined(client: Client, suspects: set[int]) -> set[int]:
    """The suspects that have joined their share or have ended. Those that have just loaded the driver get
    _JOIN_SECONDS to join."""
    deadline = time.monotonic() + _JOIN_SECONDS
    while True:
        try:
            joined = {pid for grant in client.grants() for pid in grant["processes"]}
        except GpushareError:
            return suspects
        joined |= {pid for pid in suspects if not Path(f"/proc/{pid}").exists()}
        if suspects <= joined or time.monotonic() > deadline:
            return joined
        time.sleep(0.1)
