"""What the createRuntime hook (hooks/place.c) puts into a container that is created but not started.

With CDI and NRI, a container's edits are fixed before its image can be inspected, and with a CDI device without a grant
(`any`) before there is a grant. What is missing is determined here, as the runtime wrapper does before creation.
"""

from pathlib import Path
from typing import Any

from gpushare.errors import RefusedError
from gpushare.inject import compat, edits, ldcache, oci
from gpushare.inject.view import View
from gpushare.paths import CONTAINER_COMPAT


def standing(mounts: list[edits.Mount]) -> list[tuple[str, str]]:
    """Returns (path in the container, path on the host) of each: identifies mounts however an engine writes their
    options."""
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
    """Returns the mounts of `wanted`, in OCI form, that the container lacks, and one of the image's compatibility
    driver if it has one (`inside`: the source is a path in the container); the libraries that the image preloads and a
    loader cache, as oci.apply returns them.

    `offered`: mounts that the engine was given, as `standing` returns them. The image is inspected as if they were not
    there. Raises RefusedError for an image path that is not printable, and what oci.apply raises.
    """
    told = set(offered)
    below = {**config, "mounts": [mount for mount in config.get("mounts") or () if _identity(mount) not in told]}
    edited, lines, cache = oci.apply(below, bundle, wanted, lib_dir, preload_file, cache_file)
    if cache is not None and not View(below, bundle).resolve(ldcache.PATH).exists():
        # A runtime would create the file as the mount point, the hook does not; an image without a cache needs none.
        cache, edited["mounts"] = None, edited["mounts"][:-1]
    there = {_identity(mount) for mount in config.get("mounts") or () if not _is_narrowed(mount, wanted)}
    if lines:  # the preload file that is mounted may lack the image's lines
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
    """Whether the engine made a writable mount read-only: Docker with --read-only adds `ro` to CDI mounts."""
    writable = {(one.container, one.host) for one in wanted.mounts if one.writable}
    return _identity(mount) in writable and "ro" in (mount.get("options") or ())


def root(config: dict[str, Any], bundle: Path) -> str:
    """Returns the path of the container's root file system on the host."""
    return str(bundle / config.get("root", {}).get("path", "rootfs"))


def _identity(mount: dict[str, Any]) -> tuple[str, str]:
    return mount["destination"], mount.get("source", "")
