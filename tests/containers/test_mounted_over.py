"""What users and images mount where a container's share is: a share asked for is the share that the program has, or the
container does not start. With CDI in Docker's order, which mounts what a user asks for after the mounts of CDI."""

import os
from pathlib import Path

import pytest
from engines import older_kernel
from engines.cdi_engine import ALLOC, SHARE, SPIN, allocated

from gpushare.inject.edits import NAMED
from gpushare.paths import CONTAINER_LIB, CONTAINER_SELF, RUNTIME_WRAPPER

pytestmark = pytest.mark.xdist_group("machine")

FULL = [SPIN, "--alloc", "1GiB", "--seconds", "0"]


def tmpfs(where: str, *options: str) -> dict:
    return {"destination": where, "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev", *options]}


def bind(where: str, source: Path, *options: str) -> dict:
    return {"destination": where, "type": "bind", "source": str(source), "options": ["rbind", "rprivate", *options]}


@pytest.fixture
def volume(tmp_path) -> Path:
    """As Kubernetes makes an emptyDir."""
    made = tmp_path / "volume"
    made.mkdir()
    made.chmod(0o777)
    return made


WAYS = ["named", "any", "wrapper"]


class Asked:
    """Runs a container that has its share in one of the ways."""

    def __init__(self, runtime, pair, how: str, kernel: tuple[str, ...] = ()) -> None:
        """`kernel`: a command that runs others, as on another kernel."""
        self._runtime, self._pair, self._how, self._kernel = runtime, pair, how, kernel

    def run(self, program, mounts=(), change=lambda config, root: None):
        options: dict = {
            "change": change,
            "after": lambda config: config["mounts"].extend(mounts),
            "runtime": (*self._kernel, "runc"),
        }
        if self._how == "named":
            options.update(devices=[self._pair.client.create(**SHARE)["id"]], annotations={})
        elif self._how == "wrapper":
            wrapper = [str(RUNTIME_WRAPPER), f"--gpushare-socket={self._pair.layout.socket}"]
            options.update(devices=[], runtime=(*self._kernel, *wrapper))
        result = self._runtime.run(*program, **options)
        for grant in self._pair.client.grants():
            if grant["phase"] in ("reserved", "bound"):  # of a container that did not start
                self._pair.client.release(grant["id"])
        return result

    def is_kept_to_its_share(self, mounts=(), change=lambda config, root: None) -> bool:
        """A program that finds no share gets CUDA_ERROR_NO_DEVICE, or no driver at all."""
        result = self.run(FULL, mounts, change)
        assert result.returncode == 0, result.stderr
        return allocated(result)["name"] == "CUDA_ERROR_OUT_OF_MEMORY"


@pytest.fixture(params=WAYS)
def asked(request, runtime, pair) -> Asked:
    return Asked(runtime, pair, request.param)


two_ways = pytest.mark.parametrize("asked", ["named", "wrapper"], indirect=True)
"""For what the hook does alike with `any`."""


def test_tmpfs(asked):
    """As for images that are read-only, or have s6 or systemd."""
    for where in ("/run", "/run/gpushare", "/etc"):
        assert asked.is_kept_to_its_share([tmpfs(where, "mode=755")]), where
    assert asked.is_kept_to_its_share([tmpfs("/run", "mode=700", "uid=1000", "gid=1000")])


def test_volume(asked, volume):
    """As an emptyDir: it is left with mount points, and nothing that it had is changed."""
    (volume / "gpushare" / "self").mkdir(parents=True)
    (volume / "gpushare" / "self" / "limits").write_text("theirs")
    for where in (["/run"], ["/run/gpushare"], ["/run", "/run/gpushare"]):
        assert asked.is_kept_to_its_share([bind(path, volume) for path in where]), where
    files = [path.relative_to(volume / "gpushare") for path in volume.rglob("gpushare/**/*") if path.is_file()]
    assert {str(path): (volume / "gpushare" / path).read_text() for path in files} == {
        "self/limits": "theirs", **{f"names/{name}": "" for name in NAMED}
    }  # fmt: skip
    (volume / "gpushare").rename(volume / "another")
    assert asked.is_kept_to_its_share([bind("/run", volume)])


@two_ways
def test_var_run(asked, volume):
    """/var/run, which is a link to /run in most images, and the other way round in old ones."""

    def usual(config, root):
        (root / "var").mkdir()
        (root / "var" / "run").symlink_to("/run")

    def old(config, root):
        (root / "run").rmdir()
        (root / "var" / "run").mkdir(parents=True)
        (root / "run").symlink_to("var/run")

    for change in (usual, old):
        for mount in (tmpfs("/var/run"), tmpfs("/run"), bind("/var/run", volume)):
            assert asked.is_kept_to_its_share([mount], change), mount


@pytest.mark.promise("share-is-seen")
def test_what_an_image_or_a_pod_puts_over_parts_of_it(asked, volume):
    """Volumes that the image declares are filled with the image's files; a pod can mount single files too."""
    forged = volume / "limits"
    forged.write_bytes(bytes(1 << 16))
    (volume / "libgpushare.so").write_bytes(b"")
    for mount in (
        bind(CONTAINER_SELF, volume),
        bind(CONTAINER_LIB, volume),
        bind(f"{CONTAINER_LIB}/libgpushare.so", volume / "libgpushare.so"),
        bind("/etc/ld.so.preload", forged),
    ):
        assert asked.is_kept_to_its_share([mount]), mount
    # With `any`, the engine finds no mount point for it.
    result = asked.run(FULL, [bind("/run/gpushare/self/limits", forged)])
    assert result.returncode != 0 or allocated(result)["name"] == "CUDA_ERROR_OUT_OF_MEMORY", result.stdout


def test_users_of_its_own(asked, short_path, volume):
    """The tmpfs belongs to the container's user namespace, in which the host's root can make nothing as itself."""
    short_path.chmod(0o755)

    def change(config, root):
        for path in (root, *(path for path in root.iterdir() if not path.is_symlink())):
            os.chown(path, 100_000, 100_000)
        mapping = [{"containerID": 0, "hostID": 100_000, "size": 65536}]
        config["linux"].update(uidMappings=mapping, gidMappings=mapping)
        config["linux"]["namespaces"].append({"type": "user"})

    assert asked.is_kept_to_its_share([tmpfs("/run", "mode=755")], change)


@pytest.mark.promise("no-path-leads-out")
@two_ways
@pytest.mark.parametrize("where", ["/run", "/etc/ld.so.preload", "/run/gpushare", "/run/gpushare/self"])
def test_links_in_a_hostile_image(asked, tmp_path, where):
    """They lead to nowhere but into the container; with what they lead to, the share is there."""
    target = tmp_path / "host"
    target.mkdir()

    def change(config, root):
        at = root / where.lstrip("/")
        at.parent.mkdir(parents=True, exist_ok=True)
        if at.is_dir():
            at.rmdir()
        at.symlink_to(f"../../../../../../..{target}/x")

    result = asked.run(FULL, change=change)
    assert result.returncode != 0 or allocated(result)["name"] == "CUDA_ERROR_OUT_OF_MEMORY", result.stdout
    assert list(target.iterdir()) == []
    assert str(target) not in Path("/proc/self/mountinfo").read_text()


@two_ways
def test_where_nothing_can_be_made_it_states_what_to_do(asked, volume):
    result = asked.run(ALLOC, [bind("/run", volume, "ro")])
    assert result.returncode != 0 and result.stdout == ""
    assert "/run/gpushare" in result.stderr and "ount a tmpfs" in result.stderr
    assert os.listdir(volume) == []


@two_ways
def test_what_the_host_would_see_is_refused(asked, volume):
    result = asked.run(ALLOC, [{**bind("/run", volume), "options": ["rbind", "rshared"]}])
    assert result.returncode != 0 and result.stdout == ""
    assert "mounted shared" in result.stderr and "private or slave" in result.stderr


@pytest.mark.promise("share-is-seen")
@two_ways
@pytest.mark.parametrize("mask", ["/run", "/run/gpushare/lib/libgpushare.so", "/etc/ld.so.preload"])
def test_a_masked_share_does_not_start(asked, mask):
    result = asked.run(ALLOC, change=lambda config, root: config["linux"].update(maskedPaths=["/proc/kcore", mask]))
    assert result.returncode != 0 and result.stdout == ""
    assert "masks" in result.stderr and mask in result.stderr


OLDER = ("from gpushare.inject import mounts", "mounts.placeable = lambda: False")


@pytest.mark.parametrize("how", ["named", "wrapper"])
def test_an_older_kernel_starts_nothing_without_its_share(runtime, pair, how):
    """One without mount_setattr, on which the hook can only look: in Docker's order a tmpfs on /run hides the share."""
    asked = Asked(runtime, pair, how, older_kernel.COMMAND)
    with pair.started_with(*OLDER):
        assert asked.is_kept_to_its_share()
        covered = asked.run(ALLOC, [tmpfs("/run")])
        if how == "wrapper":  # which comes after all that the engine mounts
            assert allocated(covered)["ok"]
        else:
            assert (covered.returncode != 0, covered.stdout) == (True, "")
            assert "/run/gpushare" in covered.stderr and "Linux 5.12" in covered.stderr
