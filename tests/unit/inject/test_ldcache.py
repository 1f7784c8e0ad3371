"""The loader's cache with libraries added, read by the machine's own ldconfig."""

import random
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from gpushare.inject import ldcache

LDCONFIG = shutil.which("ldconfig", path="/sbin:/usr/sbin") or ""
LIBRARIES = {"libcuda.so.1": "/names/libcuda.so.1", "libnvidia-ml.so.1": "/names/libnvidia-ml.so.1"}
EXTENSION_AT = 32  # in the header

pytestmark = pytest.mark.skipif(not LDCONFIG, reason="no ldconfig here")


def listed(cache: Path) -> list[str]:
    done = subprocess.run([LDCONFIG, "-C", cache, "-p"], capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if "=>" in line]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cache = tmp_path_factory.mktemp("cache") / "ld.so.cache"
    subprocess.run([LDCONFIG, "-X", "-C", cache], check=True, capture_output=True)
    return cache


def combined(data: bytes) -> bytes:
    """The cache as glibc before 2.32 writes it: with an older cache in front, here of three entries, and no
    extension."""
    new = bytearray(data)
    struct.pack_into("<I", new, EXTENSION_AT, 0)
    return struct.pack("<11sxI", b"ld.so-1.7.0", 3) + bytes(40) + new


@pytest.mark.parametrize("older", [False, True])
def test_ldconfig_lists_all_that_was_there_and_what_was_added(made: Path, tmp_path: Path, older: bool) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.write_bytes(combined(made.read_bytes()) if older else made.read_bytes())
    after.write_bytes(ldcache.added(before.read_bytes(), LIBRARIES) or b"")
    there, new = listed(before), [line for line in listed(after) if "/names/" in line]
    assert there and [line for line in listed(after) if line not in new] == there
    assert [line.split()[-1] for line in new] == [LIBRARIES["libnvidia-ml.so.1"], LIBRARIES["libcuda.so.1"]]
    again = ldcache.added(after.read_bytes(), {"libcuda.so.1": "/other/libcuda.so.1"})
    after.write_bytes(again or b"")
    assert [line.split()[-1] for line in listed(after) if "libcuda.so.1 " in line][:2] == [
        "/other/libcuda.so.1", "/names/libcuda.so.1",
    ]  # fmt: skip


def test_without_a_cache_there_is_one_of_ours_alone(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.write_bytes(ldcache.added(b"", LIBRARIES) or b"")
    assert len(listed(cache)) == len(LIBRARIES)


@pytest.mark.promise("loader-cache-stays-inside")
def test_whatever_a_cache_is_there_is_an_answer(made: Path) -> None:
    good, pick = made.read_bytes(), random.Random(1)
    (extension,) = struct.unpack_from("<I", good, EXTENSION_AT)
    for _ in range(150):
        data = bytearray(good)
        for _ in range(pick.randrange(1, 6)):
            at = pick.choice((pick.randrange(80), min(extension, len(good) - 60) + pick.randrange(60)))
            data[at] = pick.choice((0, 255, pick.randrange(256)))
        cut = pick.choice((len(data), pick.randrange(len(data)), pick.randrange(100)))
        answer = ldcache.added(bytes(data[:cut]), LIBRARIES)
        assert answer is None or len(answer) <= len(data) + 200
    for nothing in (b"x", bytes(100), good[:40], combined(good)[:60]):
        assert ldcache.added(nothing, LIBRARIES) is None
