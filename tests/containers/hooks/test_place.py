"""What gpushare-hook mounts into a container, and what it looks at. A process in a mount namespace stands in for the
container, which has its root in a directory."""

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")


@dataclass
class Container:
    """`given`: the mounts of the daemon's answer."""

    programs: Path
    bundle: Path
    daemon: object
    process: subprocess.Popen
    given: list[dict] = field(default_factory=list)

    @property
    def root(self) -> Path:
        return self.bundle / "root"

    def give(self, source: Path, destination: str, **more) -> None:
        plain = {"options": ["ro", "nosuid"], "inside": False, "make": False, "optional": False, "shows": []}
        self.given.append({"source": str(source), "destination": destination, **plain, **more})

    def do(self, script: str) -> str:
        """Runs a shell in the container's mount namespace."""
        command = ["nsenter", "--mount", "--target", str(self.process.pid), "sh", "-ec", f"cd $0; {script}"]
        return subprocess.run([*command, self.root], check=True, stdout=subprocess.PIPE, text=True).stdout

    def place(self) -> str:
        """Runs the hook; returns why it failed."""
        answer = {"grant": "g", "root": str(self.root), "mounts": self.given, "hidden": []}
        self.daemon.answer = lambda _: (200, answer)
        command = [self.programs / "gpushare-hook", "place", "--grant", "g", "--socket", self.daemon.path]
        state = json.dumps({"pid": self.process.pid, "bundle": str(self.bundle)})
        result = subprocess.run(command, input=state, capture_output=True, text=True, timeout=30)
        assert (result.returncode == 0) == (result.stderr == ""), result.stderr
        return result.stderr

    def mounts(self, below: str = "") -> int:
        """How many mounts there are below the root."""
        lines = Path(f"/proc/{self.process.pid}/mountinfo").read_text().splitlines()
        return sum(line.split()[4].startswith(f"{self.root}{below}/") for line in lines)


@pytest.fixture
def container(programs, daemon, tmp_path) -> Iterator[Container]:
    (tmp_path / "root").mkdir()
    (tmp_path / "config.json").write_text("{}")
    script = 'mount --bind "$0" "$0" && echo up && exec sleep infinity'
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, tmp_path / "root"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        yield Container(programs, tmp_path, daemon, process)
        process.kill()


@pytest.fixture
def ours(tmp_path) -> Path:
    """A directory of the host's."""
    made = tmp_path / "ours"
    made.mkdir()
    (made / "limits").write_text("ours")
    (made / "other").write_text("ours too")
    return made


def test_what_is_there_is_left_alone(container, ours):
    (container.root / "own").mkdir()
    container.do(f"mount --bind {ours} own; mount -o remount,bind,ro own")
    container.give(ours, "/own", shows=["limits"])
    assert (container.place(), container.mounts()) == ("", 1)


@pytest.mark.parametrize(
    "cover",
    [
        "mount -t tmpfs none own",
        "mount --bind theirs own",
        "mount --bind theirs/limits own/limits",
        "umount own; rm -r own; ln -s theirs own",
        "umount own",
        "mount -o remount,bind,rw own",
        "mount -o remount,bind,noexec own",
    ],
)
def test_what_the_container_does_not_see_is_mounted_last(container, ours, cover):
    for name in ("own", "theirs"):
        (container.root / name).mkdir()
    (container.root / "theirs" / "limits").write_text("theirs")
    container.do(f"mount --bind {ours} own; mount -o remount,bind,ro own; {cover}")
    container.give(ours, "/own", shows=["limits"])
    assert container.place() == ""
    assert container.do("cat own/limits; touch own/x 2>/dev/null || echo read-only") == "oursread-only\n"
    before = container.mounts()
    assert (container.place(), container.mounts()) == ("", before)
    assert not Path("/proc/self/mountinfo").read_text().count(str(container.root))


def test_a_mount_point_is_made_only_where_it_may_be(container, ours):
    container.do("mkdir run; mount -t tmpfs -o mode=700,uid=1000,gid=1000 none run")
    container.give(ours, "/run/own")
    container.give(ours / "limits", "/run/file")
    assert "nothing can be mounted at /run/own" in container.place()
    for mount in container.given:
        mount["make"] = True
    assert container.place() == ""
    assert container.do("cat run/own/limits run/file; stat -c %u:%g:%a run") == "oursours1000:1000:700\n"
    container.do("umount run/own run/file")
    assert container.do("stat -c %u:%F run/own run/file") == "1000:directory\n1000:regular empty file\n"


@pytest.mark.promise("no-path-leads-out")
@pytest.mark.parametrize("link", ["/nowhere", "../../../..", "/proc/self/root/tmp", "own"])
def test_a_link_leads_to_nowhere_else(container, ours, tmp_path, link):
    (container.root / "own").symlink_to(f"{link}{tmp_path}" if link.startswith("..") else link)
    container.give(ours, "/own", make=True)
    assert "at /own in the container" in container.place()
    assert container.mounts() == 0


def test_what_is_not_whole_does_not_start(container, ours):
    (container.root / "own").mkdir()
    container.give(ours, "/own", shows=["limits", "none"])
    assert "has no none: has the grant ended" in container.place()


def test_what_need_not_be_there(container, ours):
    container.give(ours, "/none", optional=True)
    container.give(ours / "limits", "/ours")
    (container.root / "ours").touch()
    assert container.place() == ""
    assert container.do("cat ours; ls") == "oursours\n"


@pytest.mark.promise("share-is-seen")
@pytest.mark.parametrize("cover", ["/own", "/own/limits"])
def test_what_is_covered_in_the_end_does_not_start(container, ours, cover):
    """Here by the answer itself; it could also be another process, which has a volume of the container."""
    (container.root / "own").mkdir()
    container.give(ours, "/own", shows=["limits"])
    container.give(ours / "other" if cover.endswith("limits") else container.bundle, cover)
    assert "would start without its share: at /own it sees something else" in container.place()
