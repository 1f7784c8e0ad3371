"""What is decided of an image: where the carrier's client libraries go, and which images cannot use them."""

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from gpushare.errors import GpushareError, RefusedError
from gpushare.inject.view import View
from gpushare.paths import SIM_LIB_DIR
from gpushare.remote.containers import elf, image, libraries

MULTIARCH = f"usr/lib/{os.uname().machine}-linux-gnu"
LIBC = f"/{MULTIARCH}/libc.so.6"
NAMES = ("libcuda.so.1", "libnvidia-ml.so.1")
CONFIG = {"root": {"path": "rootfs"}, "mounts": [], "process": {"env": ["PATH=/bin"]}}


@pytest.fixture
def bundle(tmp_path) -> Path:
    """A bundle whose image has a glibc and nothing else."""
    (tmp_path / "rootfs" / MULTIARCH).mkdir(parents=True)
    (tmp_path / "rootfs/lib").symlink_to("usr/lib")
    shutil.copy(LIBC, tmp_path / "rootfs" / LIBC[1:])
    return tmp_path


def client(**more: dict[str, list[str]]) -> dict:
    """A carrier's client libraries; `more`: versions that libcuda.so.1 needs besides its own."""
    found = libraries.wanted(SIM_LIB_DIR, NAMES)
    for file, versions in more.items():
        found["libcuda.so.1"].needed.append(file.replace("_", "."))
        found["libcuda.so.1"].versions[file.replace("_", ".")] = versions
    return found


def places(bundle: Path, wanted: dict, **changed) -> dict[str, bool]:
    """Where the libraries are mounted, and whether the place has to be made."""
    config = {**CONFIG, **changed}
    found = image.mounts(config, View(config, bundle), "example", wanted)
    assert all(mount.options[-1] == "ro" and not mount.optional for mount in found)
    return {mount.destination: mount.make for mount in found}


def refusal(bundle: Path, wanted: dict) -> str:
    with pytest.raises(RefusedError) as raised:
        places(bundle, wanted)
    return str(raised.value)


def test_versions_are_those_that_readelf_shows():
    for path in (LIBC, str(SIM_LIB_DIR / "libcuda.so.1")):
        found = elf.read(Path(path).read_bytes())
        assert found is not None
        shown = subprocess.run(["readelf", "--version-info", "--wide", path], capture_output=True, text=True).stdout
        defined, _, needed = shown.partition("Version needs section")
        assert {line.split("Name: ")[1].split()[0] for line in defined.splitlines() if "Name: " in line} == found.has
        wanted = {line.split("Name: ")[1].split()[0] for line in needed.splitlines() if "Name: " in line}
        assert wanted == {version for versions in found.versions.values() for version in versions}


def test_they_are_put_where_the_loader_looks(bundle):
    assert places(bundle, client()) == {
        f"/{MULTIARCH}/{name}": True for name in ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1", "libnvidia-ml.so")
    }


def test_every_copy_of_the_driver_in_the_image_is_covered(bundle):
    root = bundle / "rootfs"
    for place in (MULTIARCH, "usr/local/cuda-13.0/compat", "opt/own"):
        (root / place).mkdir(parents=True, exist_ok=True)
        (root / place / "libcuda.so.580.1").touch()
        (root / place / "libcuda.so.1").symlink_to("libcuda.so.580.1")
    env = {"process": {"env": ["LD_LIBRARY_PATH=/opt/own:relative"]}}
    assert places(bundle, client(), **env) == {
        f"/{MULTIARCH}/libcuda.so.580.1": False,
        "/usr/local/cuda-13.0/compat/libcuda.so.580.1": False,
        "/opt/own/libcuda.so.580.1": False,
        f"/{MULTIARCH}/libcuda.so": True,
        f"/{MULTIARCH}/libnvidia-ml.so.1": True,
        f"/{MULTIARCH}/libnvidia-ml.so": True,
    }


def test_an_older_glibc_is_refused_with_the_numbers(bundle):
    line = refusal(bundle, client(libc_so_6=["GLIBC_2.2.5", "GLIBC_2.99"]))
    own = os.confstr("CS_GNU_LIBC_VERSION").split()[1]
    assert line.startswith(f"the container's glibc is {own}, and the client libraries of carrier example need 2.99")


def test_musl_is_refused(bundle):
    root = bundle / "rootfs"
    shutil.rmtree(root / "usr")
    (root / "usr/lib").mkdir(parents=True)
    assert "no C library" in refusal(bundle, client())
    (root / "usr/lib/ld-musl-x86_64.so.1").touch()
    assert "has musl" in refusal(bundle, client())


def test_other_libraries_are_the_images_own_where_it_has_them(bundle, tmp_path):
    """libstdc++ beside the client libraries: the image's is used if it is new enough, otherwise the start is refused;
    an image without it gets ours."""
    own = tmp_path / "client"
    own.mkdir()
    for file in (SIM_LIB_DIR / "libcuda.so.1", Path(f"/{MULTIARCH}/libstdc++.so.6")):
        shutil.copy(file, own / file.name)
    wanted = libraries.wanted(own, ["libcuda.so.1", "libstdc++.so.6"])
    wanted["libcuda.so.1"].needed.append("libstdc++.so.6")
    wanted["libcuda.so.1"].versions["libstdc++.so.6"] = ["GLIBCXX_3.4"]
    wanted["libstdc++.so.6"].driver = False
    assert places(bundle, wanted)[f"/{MULTIARCH}/libstdc++.so.6"]
    shutil.copy(f"/{MULTIARCH}/libstdc++.so.6", bundle / "rootfs" / MULTIARCH)
    assert f"/{MULTIARCH}/libstdc++.so.6" not in places(bundle, wanted)
    wanted["libcuda.so.1"].versions["libstdc++.so.6"] = ["GLIBCXX_9.9"]
    assert "libstdc++.so.6 has no GLIBCXX_9.9" in refusal(bundle, wanted)


def test_nothing_is_made_in_a_directory_of_the_host(bundle):
    mounts = [{"destination": "/usr", "type": "bind", "source": "/usr", "options": ["rbind", "ro"]}]
    with pytest.raises(RefusedError, match=r"so\.1 cannot be made in the container"):
        places(bundle, client(), mounts=mounts)


@pytest.mark.promise("client-image-leads-nowhere")
def test_an_image_that_wants_to_lead_out_leads_into_itself(bundle, tmp_path):
    root, outside = bundle / "rootfs", tmp_path / "outside"
    outside.mkdir()
    shutil.copy(LIBC, outside / "libc.so.6")
    shutil.rmtree(root / MULTIARCH)
    (root / MULTIARCH).symlink_to(f"/../../../..{outside}")  # which is not in the image
    assert "no C library" in refusal(bundle, client())
    (root / MULTIARCH).unlink()
    (root / MULTIARCH).mkdir()
    os.mkfifo(root / MULTIARCH / "libc.so.6")
    assert "no C library" in refusal(bundle, client())
    (root / MULTIARCH / "libc.so.6").unlink()
    (root / MULTIARCH / "libc.so.6").symlink_to("libc.so.6")
    assert "no C library" in refusal(bundle, client())


@pytest.mark.promise("client-image-leads-nowhere")
def test_a_damaged_library_is_refused_and_nothing_else_happens(bundle):
    path, whole = bundle / "rootfs" / LIBC[1:], Path(LIBC).read_bytes()
    for size in (0, 1, 5, 63, 64, 65, 200, 4096, len(whole) // 2):
        path.write_bytes(whole[:size])
        with pytest.raises(GpushareError):
            places(bundle, client(libc_so_6=["GLIBC_2.2.5"]))
    for at in (*range(64), *random.sample(range(64, 4096), 136)):  # a byte of the headers and tables, changed
        data = bytearray(whole)
        data[at] ^= 0xFF
        elf.read(bytes(data))  # may find anything, raises nothing
