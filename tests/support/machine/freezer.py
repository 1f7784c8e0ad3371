"""Freezes and thaws the processes of a cgroup, as an administrator or a container engine may."""

from gpushare.enforce.cgroup import Cgroup


def freeze(group: Cgroup) -> None:
    """Requests the freeze; `frozen` returns true once every thread has stopped."""
    _write(group, "1", "FROZEN")


def thaw(group: Cgroup) -> None:
    _write(group, "0", "THAWED")


def frozen(group: Cgroup) -> bool:
    if group.v2:
        return "frozen 1" in (group.path / "cgroup.events").read_text().splitlines()
    return (group.path / "freezer.state").read_text().strip() == "FROZEN"


def _write(group: Cgroup, v2: str, v1: str) -> None:
    if group.v2:
        (group.path / "cgroup.freeze").write_text(v2)
    else:
        (group.path / "freezer.state").write_text(v1)
