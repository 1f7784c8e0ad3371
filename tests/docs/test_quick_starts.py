"""Blocks of commands on the pages for beginners, run as pasted, in copies of this machine's root in which they may
change everything. What is not run, and why: tests/support/views/pasted.py."""

import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from engines.cri import IMAGE, configuration, image_archive
from engines.installed import PODMAN, make_rootfs
from machine.ownroot import OwnRoot
from schedulers import slurm
from views.pagecode import ROOT, Block, blocks
from views.pasted import NOT_RUN, alike, commands, pasted, script, steps, unlike

from gpushare.paths import RUNTIME_WRAPPER

pytestmark = pytest.mark.xdist_group("machine")

START = ROOT / "docs/start"
# The copy's root is an overlay, on which Podman cannot make another overlay.
STORAGE = '[storage]\ndriver = "vfs"\ngraphroot = "/tmp/here/storage"\nrunroot = "/run/storage"'
# What an installation puts into PATH, and sudo, which a machine used as root may lack.
COMMANDS = f"""
for command in "gpushare {sys.executable} -m gpushare" "gpushare-runtime {RUNTIME_WRAPPER}" "sudo"; do
  set -- $command; name=$1; shift
  printf '#!/bin/sh\\nexec %s "$@"\\n' "$*" > /usr/local/bin/$name && chmod 755 /usr/local/bin/$name
done
export PATH=/usr/local/bin:$PATH
"""
# Grants end a moment after their programs; a daemon that is terminated leaves nothing.
END = """
until gpushare ps | grep -q 'no grants'; do sleep 0.1; done
kill $(jobs -p)
wait
"""


PLAIN = ("docs/start/process.md", "README.md", "docs/start/install.md", "docs/start/index.ja.md")
# What the packages of shells bring along. The doctor's status says whether it found something, which ends nothing here.
SHELLS = """
mkdir -p /etc/bash_completion.d /etc/fish/completions
gpushare() { command gpushare "$@" || { local status=$?; [ "$1 $status" = "doctor 1" ] || return $status; }; }
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="containers need root")


@pytest.fixture(scope="session")
def rootfs(tmp_path_factory) -> Path:
    return make_rootfs(tmp_path_factory.mktemp("image") / "rootfs.tar")


@pytest.fixture
def follow(tmp_path, rootfs):
    """Gives a function that runs the blocks of the start page and of other pages in order, in one shell, and returns
    their output, of which the consoles' is as shown. `before`: commands that an administrator has run already, in a
    folder with rootfs.tar. `between`: commands before the last block."""

    def run(*pages: str, before: str = "", between: str = "") -> str:
        root = OwnRoot(tmp_path)
        files = ROOT / "build" / f"docs-{os.getpid()}"  # visible in the copy, which has its own /tmp
        files.mkdir(parents=True)
        try:
            shutil.copy(rootfs, files / "rootfs.tar")
            image_archive(rootfs, files / "image.tar")
            parts = [part for page in ("docs/start/index.md", *pages) for part in script(page)]
            parts.insert(-1, between)
            done = root(
                f"{COMMANDS}\nmkdir /tmp/here && cd /tmp/here && cp {files}/*.tar .\n{before}\n"
                + "\n".join([*parts, END])
            )
        finally:
            shutil.rmtree(files)
        assert done.returncode == 0, done.stdout + done.stderr
        lost = [one for page in pages for one in unlike(page, done.stdout)]
        assert not lost, "\n\n".join(lost)
        return done.stdout

    return run


@needs_root
def test_pages_of_a_plain_node(follow):
    """One after the other, on one node."""
    said = follow(*PLAIN, before=SHELLS)
    assert "0MiB /   4096MiB" in said
    assert "CUDA shows 4 GiB" in said
    assert "status 125" in said
    assert "admitted on device 0" in said


def events(output: str, name: str) -> list[dict]:
    found = [json.loads(line) for line in output.splitlines() if line.startswith('{"event"')]
    return [event for event in found if event["event"] == name]


@needs_root
@pytest.mark.slow
def test_podman(follow):
    if shutil.which("podman") is None:
        pytest.skip("podman is not installed")
    said = follow(
        "docs/start/podman.md",
        "docs/guides/troubleshooting/symptoms.md",
        before=f"""
        export IMAGE=docker.io/library/debian:12
        cat > /etc/containers/storage.conf <<'END'\n{STORAGE}\nEND
        cat > /etc/containers/containers.conf <<'END'\n{PODMAN}\nEND
        podman import --quiet rootfs.tar $IMAGE
        """,
    )
    assert [(event["ok"], event["name"]) for event in events(said, "alloc")] == [
        (True, "CUDA_SUCCESS"),
        (False, "CUDA_ERROR_OUT_OF_MEMORY"),
        (True, "CUDA_SUCCESS"),
    ]


@needs_root
@pytest.mark.slow
def test_runc(follow):
    if shutil.which("runc") is None:
        pytest.skip("runc is not installed")
    said = follow("docs/start/runc.md")
    assert [event["ok"] for event in events(said, "alloc")] == [True]
    assert "status 1" in said


@needs_root
@pytest.mark.slow
def test_containerd(follow):
    if shutil.which("ctr") is None:
        pytest.skip("containerd is not installed")
    version = subprocess.run(["containerd", "--version"], capture_output=True, text=True).stdout.split()[2]
    settings = configuration(Path("/tmp/ctd"), since_2=version.lstrip("v").startswith("2"))
    said = follow(
        "docs/start/containerd.md",
        before=f"""
        mkdir -p /etc/containerd /tmp/ctd
        cat > /etc/containerd/config.toml <<'END'\n{settings}\nEND
        containerd > /tmp/ctd/log 2>&1 &
        export CONTAINERD_ADDRESS=/tmp/ctd/sock CONTAINERD_SNAPSHOTTER=native IMAGE={IMAGE}
        until ctr version > /dev/null 2>&1; do sleep 0.1; done
        ctr images import --snapshotter native image.tar
        """,
    )
    assert [event["ok"] for event in events(said, "alloc")] == [True]
    assert "none" in said.splitlines()
    assert "+" in said and "runtimes.gpushare" in said  # what --dry-run shows


# A private /dev, with a node of the name that gres.conf gives the simulated device.
DEV = """
mount -t tmpfs none /dev && mkdir /dev/shm && mount -t tmpfs none /dev/shm
for node in null:3 zero:5 full:7 random:8 urandom:9 nvidia0:3; do mknod -m 666 /dev/${node%:*} c 1 ${node#*:}; done
"""
SLURM = """
(echo "$CLUSTER"; cat <<'END'\n{text}END
) > /etc/slurm/slurm.conf
cd /tmp/here && mkdir state spool && head -c 1024 /dev/urandom > munge.key && chmod 400 munge.key
munged --force --key-file=$PWD/munge.key --socket=$PWD/munge.sock --pid-file=$PWD/m.pid --log-file=$PWD/m.log \\
  --seed-file=$PWD/m.seed
slurmctld && slurmd -N {host}
until scontrol show node {host} | grep -q State=IDLE; do sleep 0.1; done
"""


@needs_root
@pytest.mark.slow
def test_slurm(follow):
    if (gone := slurm.missing()) is not None:
        pytest.skip(f"{gone} is not installed")
    host = socket.gethostname().partition(".")[0]
    names = {"d": "/tmp/here", "host": host, "count": 1, "shards": 100}
    ports = {name: slurm.free_port() for name in ("ctld_port", "slurmd_port")}
    [written] = blocks(START / "slurm.md", "text")
    own = [
        line for line in slurm.CONF.format(**names, **ports).splitlines() if "rolog" not in line and "pilog" not in line
    ]
    cluster = "\n".join(own)
    said = follow(
        "docs/start/slurm.md",
        before=f"{DEV}export PATH=$PATH:/usr/sbin:/sbin CLUSTER={shlex.quote(cluster)}; mkdir -p /etc/slurm",
        between=SLURM.format(text=written.text, host=host),
    )
    assert "CUDA shows 4.8 GiB" in said


def test_pages_without_commands_to_run_say_how_they_were_tried():
    for page in sorted(START.glob("*.md")):
        text = page.read_text()
        if not blocks(page, "sh"):
            assert "**Was it run?**" in text, page.name
            assert "tests/" in text or "by hand" in text.lower() or "make test-" in text, page.name


def test_each_block_is_run_or_says_what_it_needs():
    run = {f"docs/start/{name}.md" for name in ("index", "podman", "runc", "containerd", "slurm")}
    run |= {*PLAIN, "docs/guides/troubleshooting/symptoms.md"}
    waits = {(page, start) for page, starts in NOT_RUN.items() for start in starts}
    lost, used = [], set()
    for block in pasted():
        found = [(page, start) for page, start in waits if page == block.page and commands(block).startswith(start)]
        used |= set(found)
        if not found and block.page not in run:
            lost.append(f"{block} is on a page that no test runs: name what it needs in NOT_RUN")
    assert lost == []
    assert waits == used, "some begin no block"


CONSOLE = Block("page", 1, "console", "$ echo g-0123ab \\\n    40 ms\ng-98fe 3.1 s\n...\nend\n# cat <<END\n$ no\nEND\n")


def test_a_console_is_commands_and_what_they_say():
    first, second = steps(CONSOLE)
    assert first.command == "echo g-0123ab \\\n    40 ms" and first.shown == ["g-98fe 3.1 s", "...", "end"]
    assert (second.command, second.shown) == ("cat <<END\n$ no\nEND", [])
    assert alike(first.shown, ["g-0a1b2c  40 ms", "one", "two", "end"])
    assert not alike(first.shown, ["g-0a1b2c  40 ms", "one", "two"])
    assert not alike(["has 4 GiB"], ["has 5 GiB"])
