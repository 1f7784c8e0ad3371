"""The directory of one grant: `<layout.grants>/<id>/` with `self/` inside, which is what the tenant sees. Its paths,
and what is preloaded from there; inject/grantfiles.py makes it."""

import functools
from pathlib import Path
from typing import Literal

from gpushare import paths
from gpushare.inject.node import Node
from gpushare.paths import CONTAINER_DRIVER, CONTAINER_LIB, Layout

Kind = Literal["container", "process"]

STAND_IN = "any"
"""In the place of a grant's id, which no grant has: the directory of those CDI devices that stand for no grant."""

# As a container sees them.
INTERPOSERS = tuple(f"{CONTAINER_LIB}/{path.name}" for path in paths.INTERPOSERS)
_SIM_RUNTIMES = tuple(f"{CONTAINER_DRIVER}/{name}" for name in paths.SIM_RUNTIMES)


def preloaded(node: Node) -> tuple[str, ...]:
    """What a container preloads."""
    return (*INTERPOSERS, *(_SIM_RUNTIMES if node.simulated else ()))


@functools.lru_cache(maxsize=2048)
def grant_dir(layout: Layout, grant_id: str) -> Path:
    """The grant's directory, which only root can list."""
    return Path(f"{layout.grants}/{grant_id}")  # a third of what `/` takes


def self_name(layout: Layout, grant_id: str) -> str:
    """The path of the part of it that the tenant sees."""
    return f"{layout.grants}/{grant_id}/self"


@functools.lru_cache(maxsize=2048)
def self_dir(layout: Layout, grant_id: str) -> Path:
    """The same."""
    return Path(self_name(layout, grant_id))


def preload_file(layout: Layout, grant_id: str) -> Path:
    """The grant's /etc/ld.so.preload. Outside self/, so that a tenant cannot see where its lines come from."""
    return grant_dir(layout, grant_id) / "ld.so.preload"


def cache_file(layout: Layout, grant_id: str) -> Path:
    """The grant's /etc/ld.so.cache, where it has one."""
    return grant_dir(layout, grant_id) / "ld.so.cache"
