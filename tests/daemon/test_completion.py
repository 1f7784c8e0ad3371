"""The shells themselves are asked what they would offer at a press of the tab key."""

import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
from running import Daemon

BIN = Path(sys.executable).parent
BASH = """
eval "$(gpushare completion bash)"
for COMP_LINE; do
  COMP_POINT=${#COMP_LINE} COMPREPLY=()
  _python_argcomplete gpushare
  printf '%s\\n' "${COMPREPLY[@]}" --
done
"""
FISH = "gpushare completion fish | source; for line in $argv; complete -C $line; echo -- --; end"
FISH_TOO = ("gpushare gran", "gpushare run --memory 1GiB --grant ", "gpushare run --tenant o", "gpushare drain G")
TEAM = "org/team"


def environment(daemon: Daemon) -> dict[str, str]:
    found = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "GPUSHARE_SOCKET": str(daemon.layout.socket)}
    return found | {"HOME": str(daemon.layout.state), "TERM": "dumb"}


def offered(daemon: Daemon, shell: str, *lines: str) -> list[list[str]]:
    """For each line that has been typed so far, sorted."""
    command = ["bash", "--norc", "-c", BASH, "bash"] if shell == "bash" else ["fish", "-c", FISH]
    done = subprocess.run([*command, *lines], env=environment(daemon), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    *answers, rest = done.stdout.split("--\n")
    assert rest == ""
    return [sorted(text.partition("\t")[0].strip() for text in one.splitlines() if text.strip()) for one in answers]


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_verbs_options_and_what_the_node_has(daemon: Daemon, shell: str) -> None:
    grant = daemon.client.create(memory="1GiB", time=100)["id"]
    daemon.client.set_tenant(TEAM, {"time": 100})
    devices = daemon.client.devices()
    wanted = {
        "gpushare gran": ["grant"],
        "gpushare grant re": ["release", "resize"],
        "gpushare grant show ": [grant],
        "gpushare run --memory 1GiB --grant ": [grant],
        "gpushare why g-": [grant],
        "gpushare run --tenant o": [TEAM],
        "gpushare tenants remove o": [TEAM],
        "gpushare drain G": [device["id"] for device in devices],
        "gpushare run --gpu ": [text for device in devices for text in (str(device["index"]), device["id"])],
        "gpushare runtime configure --engine ": ["containerd", "crio", "docker", "podman"],
        "gpushare plan --mem": ["--memory"],
        "gpushare run --memory ": [],
        "gpushare daemon --config /etc/hostn": ["/etc/hostname"],
    }
    lines = list(wanted) if shell == "bash" else FISH_TOO
    for line, found in zip(lines, offered(daemon, shell, *lines), strict=True):
        assert found == sorted(name.strip() for name in wanted[line]), line


def test_without_a_daemon_it_offers_what_needs_none(make_daemon) -> None:
    daemon = make_daemon()
    assert offered(daemon, "bash", "gpushare grant show ", "gpushare dra") == [[], ["drain"]]


def test_zsh(daemon: Daemon) -> None:
    """In a terminal, as it has no way to ask it."""
    grant = daemon.client.create(memory="1GiB", time=100)["id"]
    process, terminal = pty.fork()
    if process == 0:
        os.execvpe("zsh", ["zsh", "-f", "-i"], environment(daemon))
    seen = b""

    def read(mark: bytes) -> None:
        nonlocal seen
        ends = time.monotonic() + 60
        while mark not in seen and time.monotonic() < ends:
            if select.select([terminal], [], [], 1)[0]:
                seen += os.read(terminal, 65536)
        assert mark in seen, seen

    try:
        os.write(terminal, b'autoload -U compinit; compinit -D; eval "$(gpushare completion zsh)"; echo re""ady\n')
        read(b"\nready")
        seen = b""
        os.write(terminal, b"gpushare grant show g-\t")
        read(grant.encode())
        seen = b""
        os.write(terminal, b"\x15gpushare runtime configure --engine pod\t")
        read(b"podman")
    finally:
        os.close(terminal)
        os.waitpid(process, 0)


def test_each_verb_is_offered(daemon: Daemon) -> None:
    said = subprocess.run([BIN / "gpushare", "--help"], capture_output=True, text=True, check=True).stdout
    verbs = re.findall(r"^    ([a-z]+)(?: |$)", said, re.MULTILINE)
    assert len(verbs) > 20
    assert offered(daemon, "bash", "gpushare ") == [sorted(verbs)]
