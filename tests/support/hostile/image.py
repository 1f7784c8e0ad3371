"""Hostile bundles and images, as an engine would start them."""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

ASKS = {"gpushare.dev/memory": "512MiB", "gpushare.dev/time": "1%"}


def plain(etc: Path, pick: random.Random) -> None:
    (etc / "ld.so.preload").write_bytes(pick.choice((b"", b"/lib/a.so\n", bytes(1 << 20), pick.randbytes(4096))))


def loop(etc: Path, pick: random.Random) -> None:
    """Symlinks that form a loop, lead out of the image, or form a very long chain."""
    if pick.random() < 0.5:
        (etc / "ld.so.preload").symlink_to(pick.choice(("ld.so.preload", "../../../../etc/shadow", "/proc/self/fd/3")))
        return
    for number in range(60):
        (etc / f"l{number}").symlink_to("./" * 1000 + f"l{number + 1}")
    (etc / "ld.so.preload").symlink_to("l0")


def fifo(etc: Path, pick: random.Random) -> None:
    os.mkfifo(etc / "ld.so.preload")
    del pick


def device(etc: Path, pick: random.Random) -> None:
    number = pick.choice((os.makedev(1, 3), os.makedev(1, 5), os.makedev(5, 0), os.makedev(10, 130)))
    os.mknod(etc / "ld.so.preload", 0o20666, number)


def deep(etc: Path, pick: random.Random) -> None:
    at = etc
    for _ in range(100):
        at /= "d" * 30
    at.mkdir(parents=True)
    (etc / "ld.so.preload").symlink_to(f"{'d' * 30}/" * pick.choice((100, 120)) + "../" * 50 + "x")


def names(etc: Path, pick: random.Random) -> None:
    libraries = etc.parent / pick.choice(("usr/lib", "lib", "usr/lib/x86_64-linux-gnu"))
    libraries.mkdir(parents=True, exist_ok=True)
    for number in range(300):
        (libraries / f"libcuda.so.{number}").symlink_to(f"libcuda.so.{number + 1}")


def directory(etc: Path, pick: random.Random) -> None:
    (etc / "ld.so.preload").mkdir()
    del pick


def endless(etc: Path, pick: random.Random) -> None:
    """A sparse file of 1 GiB or 1 TiB."""
    with open(etc / "ld.so.preload", "wb") as file:
        file.truncate(1 << pick.choice((30, 40)))


MENU: dict[str, Callable[[Path, random.Random], None]] = {
    image.__name__: image for image in (plain, loop, fifo, device, deep, names, directory, endless)
}


def config(pick: random.Random) -> dict[str, Any]:
    """A config.json that asks for a share, with something odd in it."""
    odd: dict[str, Any] = pick.choice(
        (
            {},
            {"root": {"path": pick.choice(("", "/", "../..", "rootfs/../rootfs", "/proc/1/root", "x\0y"))}},
            {"process": {"env": ["A=" + "b" * 100_000] * 5, "args": ["x"]}},
            {"process": {"env": pick.choice((None, 5, [1], ["\ud800"]))}},
            {"mounts": [{"destination": "/" + "../" * 100, "source": "/dev/zero", "type": "bind"}] * 100},
            {"hooks": pick.choice((None, [], {"prestart": [{"path": "/x"}] * 500}))},
            {"linux": pick.choice((None, [], {"devices": [{"path": "/dev/x"}] * 500}))},
        )
    )
    asks = {**ASKS, **pick.choice(({}, {"gpushare.dev/x": "y"}, {"gpushare.dev/gang": "a" * 5000}))}
    return {"root": {"path": "rootfs"}, "annotations": asks, **odd}
