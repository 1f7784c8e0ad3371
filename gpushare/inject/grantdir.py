"""The directory of one grant, `<layout.grants>/<id>/`, with `self/` inside, the part that the tenant sees: its paths,
and the libraries to preload. inject/grantfiles.py makes it."""

import os
from pathlib import Path
from typing import Literal

from gpushare import paths
from gpushare.inject.node import Node
from gpushare.paths import CONTAINER_DRIVER, CONTAINER_LIB, Layout

Kind = Literal["container", "process"]

STAND_IN = "any"
"""Used in place of a grant id, and never one: names the directory of the CDI devices without a grant."""

# Paths in the container.
INTERPOSERS = tuple(f"{CONTAINER_LIB}/{path.name}" for path in paths.INTERPOSERS)
_SIM_RUNTIMES = tuple(f"{CONTAINER_DRIVER}/{name}" for name in paths.SIM_RUNTIMES)


def preloaded(node: Node) -> tuple[str, ...]:
    """Returns the libraries that a container preloads."""
    return (*INTERPOSERS, *(_SIM_RUNTIMES if node.simulated else ()))


_ID_AT, _ID_BYTES = 16, 40
"""Where the limits page has the grant's id, NUL-terminated (native/page/gs_page.h)."""


def own_grant() -> str | None:
    """Returns the id of the grant that this process runs in, None outside of any: for display, since a process can
    set its environment as it likes."""
    directory = Path(os.environ.get(paths.GRANT_DIR_ENV) or paths.CONTAINER_SELF)
    try:
        with (directory / "limits").open("rb") as page:
            page.seek(_ID_AT)
            return page.read(_ID_BYTES).partition(b"\0")[0].decode("ascii") or None
    except (OSError, UnicodeDecodeError):
        return None


def grant_dir(layout: Layout, grant_id: str) -> Path:
    """Returns the grant's directory, which only root can list."""
    return layout.grants / grant_id


def self_dir(layout: Layout, grant_id: str) -> Path:
    """Returns the path of self/, the part that the tenant sees."""
    return layout.grants / grant_id / "self"


def preload_file(layout: Layout, grant_id: str) -> Path:
    """Returns the grant's /etc/ld.so.preload. It is outside self/, so that the tenant does not see it there."""
    return grant_dir(layout, grant_id) / "ld.so.preload"


def cache_file(layout: Layout, grant_id: str) -> Path:
    """Returns the path of the grant's /etc/ld.so.cache; not every grant has one."""
    return grant_dir(layout, grant_id) / "ld.so.cache"
