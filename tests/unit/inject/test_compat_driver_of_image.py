"""Which driver of an image is used instead of the host's."""

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.inject import compat
from gpushare.inject.view import View

HOST = "570.86.15"


def library(message: object | None, owner: bytes = b"NVIDIA Corporation\0") -> bytes:
    """The start of a library with a build id and, if `said` is given, a note of `owner` with it."""

    def note(name: bytes, text: bytes) -> bytes:
        whole = struct.pack("<III", len(name), len(text), 3)
        return whole + name + bytes(-len(name) % 4) + text + bytes(-len(text) % 4)

    notes = note(b"GNU\0", b"12345678901234567890")
    if message is not None:
        notes += note(owner, message if isinstance(message, bytes) else json.dumps(message).encode() + b"\0\0")
    identity = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = identity + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 64, 0, 0)
    segments = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, 4096, 4096, 4096)
    segments += struct.pack("<IIQQQQQQ", 4, 4, 64 + 112, 0, 0, len(notes), len(notes), 4)
    return header + segments + notes


@pytest.fixture
def root(tmp_path: Path) -> Path:
    where = tmp_path / "rootfs/usr/local/cuda-13.1/compat"
    where.mkdir(parents=True)
    (tmp_path / "rootfs/usr/local/cuda").symlink_to("cuda-13.1")
    return where


def looked(tmp_path: Path, host: str = HOST) -> str | None:
    return compat.directory(View({"root": {"path": "rootfs"}}, tmp_path), host)


def made_for(*drivers: object) -> dict[str, object]:
    return {"format": 1, "CUDA version": "13.1", "driver": list(drivers), "device": [1, 2]}


@pytest.mark.parametrize(
    ("version", "message", "host", "taken"),
    [
        ("590.44.01", made_for(535, 570, 580), HOST, True),
        ("590.44.01", made_for(535, 580), HOST, False),
        ("570.90.01", made_for(570), HOST, True),
        ("570.86.10", made_for(570), HOST, False),
        ("570.86.15", made_for(570), HOST, False),
        ("560.35.03", made_for(570), HOST, False),
        ("575.57.08", None, HOST, True),  # without a note, a newer branch suits any host
        ("570.90.01", None, HOST, False),
        ("590.44.01", {"Driver": [570]}, HOST, True),
        ("590.44.01", {"driver": "570"}, HOST, False),
        ("590.44.01", {"driver": ["570"]}, HOST, False),
        ("590.44.01", b"not json", HOST, True),
        ("590.44.01", b"[" * 100_000, HOST, True),
        ("590.44.01", made_for(570), "", False),  # the host's device is simulated
        ("590.44.01", made_for(570), "simulated", False),
    ],
)
def test_the_newer_one_that_is_made_for_the_hosts_driver(root, tmp_path, version, message, host, taken):
    (root / f"libcuda.so.{version}").write_bytes(library(message))
    (root / "libcuda.so.1").symlink_to(f"libcuda.so.{version}")
    assert looked(tmp_path, host) == ("/usr/local/cuda-13.1/compat" if taken else None)


def test_a_note_of_another_owner_is_none(root, tmp_path):
    (root / "libcuda.so.590.44.01").write_bytes(library(made_for(535), owner=b"Somebody\0"))
    assert looked(tmp_path) is not None


def test_of_two_none_is_taken(root, tmp_path):
    for version in ("590.44.01", "595.10.01"):
        (root / f"libcuda.so.{version}").write_bytes(library(None))
    assert looked(tmp_path) is None


def test_a_link_of_the_image_leads_to_nothing_of_the_hosts(root, tmp_path):
    outside = tmp_path / "libcuda.so.590.44.01"
    outside.write_bytes(library(None))
    (root / "libcuda.so.590.44.01").symlink_to(outside)
    assert looked(tmp_path) is None


def test_an_image_without_one(tmp_path):
    (tmp_path / "rootfs").mkdir()
    assert looked(tmp_path) is None


@given(st.binary(max_size=300), st.integers(0, 300), st.booleans())
def test_any_bytes_are_a_library_with_notes_or_without(damage, at, whole):
    """Whatever an image's library has, the answer is None or branches, soon."""
    data = damage if whole else library(made_for(570))[:at] + damage
    found = compat._branches(data)
    assert found is None or all(isinstance(branch, int) for branch in found)
