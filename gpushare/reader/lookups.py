"""Looks up users and command lines: the user database may be a directory service that is slow, or does not answer; a
command line is read from the process's own memory, and can be made slow."""

import grp
import os
import pwd
from collections.abc import Sequence

from gpushare.text.printable import printable


def is_member(uid: int, gid: int, users: Sequence[int | str], groups: Sequence[int | str]) -> bool:
    """Whether the user is one of `users`, or in one of `groups`, as the user database has it. `gid`: a group of the
    user that need not be in the database. An unknown name matches nobody."""
    if any(uid == _uid(name) for name in users):
        return True
    wanted = {_gid(name) for name in groups}
    return bool(wanted) and not wanted.isdisjoint(_groups(uid, gid))


def _groups(uid: int, gid: int) -> set[int]:
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        return {gid}
    return {gid, *os.getgrouplist(name, gid)}


def _uid(name: int | str) -> int | None:
    if isinstance(name, int):
        return name
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


def _gid(name: int | str) -> int | None:
    if isinstance(name, int):
        return name
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


def unknown(users: Sequence[str], groups: Sequence[str]) -> tuple[list[str], list[str]]:
    """Those of the names that no user has, and those that no group has."""
    return [name for name in users if _uid(name) is None], [name for name in groups if _gid(name) is None]


_READ_MAX = 1024
_SHOWN_MAX = 200


def command(pid: int) -> str:
    """A process's command line, or its name where it has erased that: printable, at most 200 characters; empty where it
    has ended."""
    try:
        text = _read(pid, "cmdline") or _read(pid, "comm")
    except OSError:
        return ""
    return printable(text)[:_SHOWN_MAX]


def _read(pid: int, name: str) -> str:
    with open(f"/proc/{pid}/{name}", "rb") as file:
        words = file.read(_READ_MAX)
    return words.rstrip(b"\0\n").replace(b"\0", b" ").decode("utf-8", "surrogateescape")
