"""Stops and continues the processes of a cgroup, as an administrator or an engine may."""

from gpushare.enforce.cgroup import Cgroup


def freeze(group: Cgroup) -> None:
    """Asks for it; `frozen` says when every thread stands still."""
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
