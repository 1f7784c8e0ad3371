"""What a container has to see of its share. The createRuntime hook (hooks/place.c) looks at all of it before the
container starts, and mounts what is not there.

With CDI and NRI, a container's edits are fixed before its image can be inspected, and with a CDI device without a grant
(`any`) before there is a grant. Engines may also mount something over what they were given: Docker mounts a tmpfs on
/run after the mounts of CDI. So there the edits are worked out when the container is created; with the runtime wrapper
before, from the same config.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gpushare.errors import RefusedError
from gpushare.inject import compat, edits, ldcache, oci, preload
from gpushare.inject.view import View
from gpushare.paths import CONTAINER_COMPAT, CONTAINER_DIR


def mounts(
    edited: oci.Edited, config: dict[str, Any], wanted: edits.Edits, *, created: bool, movable: bool
) -> tuple[list[dict[str, Any]], bytes | None]:
    """Returns the mounts of an edit that the container has to see, each as a PlacedMount (gpushare/api/engines.py), and
    one of the image's compatibility driver if it has one; and the loader cache, None where the container gets none.

    `config`: the container's. `created`: it exists with this config; otherwise it is about to be made with it.
    `movable`: the hook can mount. If not, it can only look at what the engine was given. Raises RefusedError for an
    image path that is not printable, and for one of ours that the config masks.
    """
    found, cache, view = list(edited.mounts), edited.cache, edited.view
    if created and cache is not None and not view.resolve(ldcache.PATH).exists():
        # A runtime would create the file as the mount point, the hook does not; an image without a cache needs none.
        cache, found = None, found[:-1]
    if all(mount["destination"] != edits.PRELOAD_FILE for mount in found) and not _preloads(config, wanted):
        found += [oci.mounted(mount) for mount in wanted.mounts if mount.container == edits.PRELOAD_FILE]
    driver = compat.directory(view, wanted.driver_version)
    if driver is not None:
        found.append({**oci.mounted(edits.Mount(driver, CONTAINER_COMPAT)), "inside": True})
    if not movable:
        given = {_identity(mount) for mount in config.get("mounts") or ()}
        found = [mount for mount in found if _identity(mount) in given]
    _check(found, config, view)
    ours = {(mount.container, mount.host): mount for mount in wanted.mounts}
    return [_placed(mount, ours.get(_identity(mount)), view) for mount in found], cache


def _placed(mount: dict[str, Any], asked: edits.Mount | None, view: View) -> dict[str, Any]:
    """Returns a mount of a config as a PlacedMount. `asked`: the same of the edits; None: it depends on the image."""
    path = mount["destination"]
    return {
        "source": mount["source"],
        "destination": path,
        "options": mount["options"],
        "inside": mount.get("inside", False),
        # In a file system of the container's own, such as a tmpfs, nothing of the host's is changed.
        "make": path.startswith(f"{CONTAINER_DIR}/") or view.resolve(path).host is None,
        "optional": asked is not None and asked.optional,
        "shows": list(asked.shows) if asked is not None else [],
    }


def _preloads(config: dict[str, Any], wanted: edits.Edits) -> bool:
    """Whether the container's environment preloads the interposer, as where it has the host's /etc."""
    return set(wanted.preload) <= set(preload.split(oci.variable(config, "LD_PRELOAD")))


def _check(found: Iterable[dict[str, Any]], config: dict[str, Any], view: View) -> None:
    """Raises RefusedError for a path that cannot be passed on, or that the runtime hides after all hooks."""
    masked = [(path, view.resolve(path).container) for path in (config.get("linux") or {}).get("maskedPaths") or ()]
    for mount in found:
        path = mount["source" if mount.get("inside") else "destination"]
        if not path.isprintable():
            raise RefusedError(f"the image has the driver's library at {path!a:.200}, which is no text")
        place = view.resolve(mount["destination"]).container
        for mask, hidden in masked:
            if f"{place}/".startswith(f"{hidden}/") or hidden.startswith(f"{place}/"):
                raise RefusedError(
                    f"the container's configuration masks {mask!a:.200}, which hides {mount['destination']} of its "
                    "share: leave it out of the masked paths"
                )


def root(config: dict[str, Any], bundle: Path) -> str:
    """Returns the path of the container's root file system on the host."""
    return str(bundle / config.get("root", {}).get("path", "rootfs"))


def _identity(mount: dict[str, Any]) -> tuple[str, str]:
    return mount["destination"], mount.get("source", "")
