"""What is put into a container that is made and not started, by its createRuntime hook (hooks/place.c).

CDI and NRI say what a container gets before anybody can look into its image, and a CDI device of no grant (`any`)
before there is a grant. The rest is found here, when the container is there: as the runtime wrapper finds it before.
"""

from pathlib import Path
from typing import Any

from gpushare.errors import RefusedError
from gpushare.inject import compat, edits, ldcache, oci
from gpushare.inject.view import View
from gpushare.paths import CONTAINER_COMPAT


def standing(mounts: list[edits.Mount]) -> list[tuple[str, str]]:
    """What tells mounts apart, however an engine writes their options: (path in the container, path on the host)."""
    return [(mount.container, mount.host) for mount in mounts]


def missing(
    config: dict[str, Any],
    bundle: Path,
    wanted: edits.Edits,
    offered: list[tuple[str, str]],
    lib_dir: Path,
    preload_file: Path,
    cache_file: Path,
) -> tuple[list[dict[str, Any]], list[str], bytes | None]:
    """The mounts of `wanted`, as OCI writes them, that the container does not have, and what its image has for them
    (`inside`: its source is a path in the container); what its image preloads and a loader cache, as oci.apply returns
    them.

    `offered`: mounts that its engine was told of, as `standing` says. The image is looked at as it is below them.
    Raises RefusedError for an image with paths that are no text, and what oci.apply raises.
    """
    told = set(offered)
    below = {**config, "mounts": [mount for mount in config.get("mounts") or () if _identity(mount) not in told]}
    edited, lines, cache = oci.apply(below, bundle, wanted, lib_dir, preload_file, cache_file)
    if cache is not None and not View(below, bundle).resolve(ldcache.PATH).exists():
        # The runtime would make the file to mount over; nobody does that now, and whoever has none needs none.
        cache, edited["mounts"] = None, edited["mounts"][:-1]
    there = {_identity(mount) for mount in config.get("mounts") or () if not _is_narrowed(mount, wanted)}
    if lines:  # the file that is mounted may be one without them
        there.discard((edits.PRELOAD_FILE, str(preload_file)))
    found = [mount for mount in edited["mounts"][len(below["mounts"]) :] if _identity(mount) not in there]
    driver = compat.directory(View(below, bundle), wanted.driver_version)
    if driver is not None:
        options = edits.Mount(driver, CONTAINER_COMPAT).options
        found.append({"destination": CONTAINER_COMPAT, "source": driver, "options": options, "inside": True})
    for mount in found:
        path = mount["source" if mount.get("inside") else "destination"]
        if not path.isprintable():
            raise RefusedError(f"the image has the driver's library at {path!a:.200}, which is no text")
    return found, lines, cache


def _is_narrowed(mount: dict[str, Any], wanted: edits.Edits) -> bool:
    """Whether the engine has made it read-only: Docker with --read-only adds `ro` to mounts without that word."""
    writable = {(one.container, one.host) for one in wanted.mounts if one.writable}
    return _identity(mount) in writable and "ro" in (mount.get("options") or ())


def root(config: dict[str, Any], bundle: Path) -> str:
    """Where the container's root file system is on the host."""
    return str(bundle / config.get("root", {}).get("path", "rootfs"))


def _identity(mount: dict[str, Any]) -> tuple[str, str]:
    return mount["destination"], mount.get("source", "")
