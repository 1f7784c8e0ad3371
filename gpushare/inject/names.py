"""The interposer under the names of the driver's files, as links in a directory of the node (Layout.names).

Plain processes search that directory first (LD_LIBRARY_PATH): one whose LD_PRELOAD was replaced, as launch scripts do
that preload an allocator, still gets the interposer when it opens the driver by name.
"""

from gpushare.inject.node import Node
from gpushare.paths import INTERPOSER, INTERPOSER_ML, Layout

NAMED = {"libcuda.so.1": INTERPOSER.name, "libnvidia-ml.so.1": INTERPOSER_ML.name}
"""By name, the file in the interposer's directory."""

_LINKS = {**NAMED, **{name.removesuffix(".1"): file for name, file in NAMED.items()}}


def make(layout: Layout, node: Node) -> None:
    """Makes the directory, or updates it: the interposer may have moved since. Raises OSError."""
    if not layout.names.is_dir():  # mkdir of an existing directory waits for a disk that takes no writes
        layout.names.mkdir()
        layout.names.chmod(0o755)
    for name, file in _LINKS.items():
        link, target = layout.names / name, node.lib_dir / file
        if link.is_symlink() and link.readlink() == target:
            continue
        fresh = layout.names / f".{name}.new"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(target)
        fresh.replace(link)


def remove(layout: Layout) -> None:
    """Removes the links, and the directory if nothing else is in it. Raises OSError."""
    for name in _LINKS:
        (layout.names / name).unlink(missing_ok=True)
    if layout.names.exists():
        layout.names.rmdir()
