"""Completion as each shell itself offers it at the tab key."""

import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
from run import running
from run.running import Daemon

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
TEAM = "org/team"


def environment(daemon: Daemon) -> dict[str, str]:
    found = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "GPUSHARE_SOCKET": str(daemon.layout.socket)}
    return found | {"HOME": str(daemon.layout.state), "TERM": "dumb"}


def offered(daemon: Daemon, shell: str, *lines: str) -> list[list[str]]:
    """What the shell offers for each typed line, sorted."""
    command = ["bash", "--norc", "-c", BASH, "bash"] if shell == "bash" else ["fish", "-c", FISH]
    done = subprocess.run([*command, *lines], env=environment(daemon), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    *answers, rest = done.stdout.split("--\n")
    assert rest == ""
    return [sorted(text.partition("\t")[0].strip() for text in one.splitlines() if text.strip()) for one in answers]


def asked(daemon: Daemon, directory: Path, line: str) -> list[str]:
    """What gpushare answers to a shell's completion request, sorted."""
    answer = directory / "answer"
    answer.write_text("")
    question = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_IFS": "\n"}
    env = (
        daemon.env
        | question
        | {"_ARGCOMPLETE_STDOUT_FILENAME": str(answer), "PATH": f"{directory}:{os.environ['PATH']}"}
    )
    child = running.start(running.GPUSHARE, env)
    _, reply = child.communicate(60)
    assert (child.wait(), reply) == (0, ""), line
    return sorted(text.strip() for text in answer.read_text().splitlines())


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_verbs_options_and_what_the_node_has(daemon: Daemon, shell: str) -> None:
    daemon.client.set_tenant(TEAM, {"time": 100})
    grant = daemon.client.create(memory="1GiB", time=100)["id"]
    devices = daemon.client.devices()
    wanted = {
        "gpushare gran": ["grant"],
        "gpushare run --memory 1GiB --grant ": [grant],
        "gpushare run --tenant o": [TEAM],
        "gpushare drain G": [device["id"] for device in devices],
        "gpushare runtime configure --engine=po": ["podman"],
        f"gpushare events --grant={grant[:6]}": [grant],
        "gpushare daemon --config /etc/hostn": ["/etc/hostname"],
    }
    lines = list(wanted) if shell == "bash" else list(wanted)[:4]
    for line, found in zip(lines, offered(daemon, shell, *lines), strict=True):
        assert found == sorted(name.strip() for name in wanted[line]), line


def test_every_argument_that_names_something(daemon: Daemon, tmp_path: Path) -> None:
    gang = f"completed-{os.getpid()}"  # an aborted id cannot be used again
    grant = daemon.client.create(memory="1GiB", time=100)["id"]
    daemon.client.set_tenant(TEAM, {"time": 100})
    prepared = [one["id"] for one in daemon.client.prepare(gang, [{"memory": "1GiB", "time": 100}])["grants"]]
    devices = daemon.client.devices()
    indices, ids = [str(device["index"]) for device in devices], [device["id"] for device in devices]
    wanted = {
        "grant re": ["release", "resize", "resume"],
        "run --memory 1GiB --grant ": [grant, *prepared],
        "tenants remove o": [TEAM],
        "tenants set x --parent o": [TEAM],
        "run --gpu ": [*indices, *ids],
        "sim lose ": indices,
        f"gang abort {gang[:5]}": [gang],
        "runtime configure --engine ": ["containerd", "crio", "docker", "k3s", "podman", "rke2"],
        "runtime status --engine do": ["docker"],
        "adapter s": ["slurm"],
        "adapter prometheus --print ": ["dashboard", "rules", "scrape"],
        "events --kind l": ["late", "lease", "left", "lie"],
        "plan --mem": ["--memory"],
        "run --memory ": [],
        "gang prepare x --grants /etc/hostn": ["/etc/hostname"],
        "quota solve /etc/hostn": ["/etc/hostname"],
        f"run --grant {grant} -- gtrain": ["gtrain-a", "gtrain-b"],
        f"run --grant {grant} -- cat /etc/hostn": ["/etc/hostname"],
    }
    (known := tmp_path / "nodes.toml").write_text('[nodes.gpu1]\n[nodes.gpu2]\ntarget = "unix:/x"\n[nodes.other]\n')
    for verb in ("run --on", "run --remote", "remote check", "remote list"):
        wanted[f"{verb} --nodes {known} g" if verb[:2] == "re" else f"run --nodes {known} {verb[4:]} g"] = [
            "gpu1",
            "gpu2",
        ]
    for verb in ("why", "grant show", "grant debug", "grant resize", "events --grant", "run --grant"):
        wanted[f"{verb} {grant[:8]}"] = [grant]
    for verb in ("run", "plan", "grant create", "events", "usage", "gang prepare x"):
        wanted[f"{verb} --tenant o"] = [TEAM]
    for verb in ("undrain", "plan --gpu", "grant create --gpu", "events --device"):
        wanted[f"{verb} {ids[0]}"] = ids[:1]
    for name, mode in (("gtrain-a", 0o755), ("gtrain-b", 0o700), ("gtrain-c", 0o644)):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(mode)
    for line, names in wanted.items():
        assert asked(daemon, tmp_path, f"gpushare {line}") == sorted(names), line


def test_without_a_daemon_it_offers_what_needs_none(make_daemon) -> None:
    daemon = make_daemon()
    assert offered(daemon, "bash", "gpushare grant show ", "gpushare dra") == [[], ["drain"]]


def test_zsh(daemon: Daemon) -> None:
    """In a terminal, as zsh has no way to query its completions."""
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
    reply = subprocess.run([BIN / "gpushare", "--help"], capture_output=True, text=True, check=True).stdout
    verbs = re.findall(r"^  ([a-z]+)  ", reply, re.MULTILINE)
    assert len(verbs) > 20
    assert offered(daemon, "bash", "gpushare ") == [sorted(verbs)]
