"""`gpushare run --on NODE`: the program runs on the node with the device, by ssh, in a share there."""

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from gpushare.cli.grants.attended import Attended, end_by
from gpushare.cli.parser import Parser
from gpushare.cli.program import become
from gpushare.errors import UnreachableError
from gpushare.paths import DEFAULT_SOCKET, PARENT_ENV
from gpushare.processes import ssh
from gpushare.remote.nodes import Target

_OWN = ("--on", "--nodes")
"""Options that the node has no use for."""


def run(target: Target, args: argparse.Namespace, typed: Sequence[str], argv: list[str]) -> int:
    """Returns the command's exit status. `typed`: the options of `gpushare run` as they were typed. Raises
    UnreachableError."""
    if shutil.which("ssh") is None:
        raise UnreachableError("ssh is not installed here: install it (openssh-client)")
    words = [*typed, *(("--socket", str(target.socket)) if _elsewhere(target, args) else ())]
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    log = os.memfd_create("ssh")
    # By the number of this process: ssh closes all descriptors that it is given.
    ssh_words = ssh.running(
        target.host,
        script(target.name, Path.cwd(), words, argv),
        terminal=terminal,
        log=f"/proc/{os.getpid()}/fd/{log}",
    )
    attended = Attended.start(lambda: become(ssh_words, os.environ))
    if isinstance(attended, int):
        return attended
    attended.wait()
    said = os.pread(log, 1 << 16, 0)
    if attended.status == ssh.FAILED:
        if said.strip():
            raise UnreachableError(f"{target.name} cannot be reached by ssh: {ssh.last_line(said)}")
        if attended.ending is not None:  # ssh says nothing when a signal ends it
            return end_by(attended.ending)
    return attended.end()


def _elsewhere(target: Target, args: argparse.Namespace) -> bool:
    """Whether the daemon there has to be named."""
    return target.socket != DEFAULT_SOCKET and args.socket is None and args.simulate is None


def options(parser: Parser, argv: Sequence[str]) -> list[str]:
    """Returns the options of `gpushare run` as they were typed, without those that only say where to run. `argv`: the
    command behind them."""
    typed = parser.given[: len(parser.given) - len(argv)]
    return without_own(typed[:-1] if typed[-1:] == ["--"] else typed, parser.names())


def without_own(words: Sequence[str], options: Sequence[str]) -> list[str]:
    """As `options`. `options`: all that there are: argparse takes each of them shortened, too."""
    kept, skips = [], False
    for word in words:
        if skips:
            skips = False
            continue
        name, equals, _ = word.partition("=")
        meant = [name] if name in options else [one for one in options if name[:2] == "--" and one.startswith(name)]
        if len(meant) == 1 and meant[0] in _OWN:
            skips = not equals
        else:
            kept.append(word)
    return kept


def script(node: str, directory: Path, options: Sequence[str], argv: Sequence[str]) -> str:
    """Returns what sh is to do on the node."""
    place, command = ssh.quoted([str(directory)]), ssh.quoted(["gpushare", "run", *options, "--", *argv])
    moved = ssh.quoted(
        [f"gpushare: {node} has no directory {directory}: the command runs in your home directory there"]
    )
    lacks = ssh.quoted([f"gpushare: {node} has no gpushare in the PATH of ssh's commands: install it there"])
    return "\n".join(
        (
            f"cd {place} 2>/dev/null || echo {moved} >&2",
            f"command -v gpushare >/dev/null || {{ echo {lacks} >&2; exit 125; }}",
            f"{PARENT_ENV}=$PPID exec {command}",
        )
    )
