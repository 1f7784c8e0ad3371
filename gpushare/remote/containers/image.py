"""Where a container has to find the client libraries of a carrier, and whether it can use them.

They are mounted over each copy of the driver's libraries that the image has, and put into the directory of its C
library, which its loader searches in any case: no file of the image names them, and no variable of it is replaced.
"""

import re
from collections.abc import Mapping
from typing import Any

from gpushare.api.engines import PlacedMount
from gpushare.errors import RefusedError
from gpushare.inject import oci, preload
from gpushare.inject.edits import Mount
from gpushare.inject.view import View
from gpushare.remote.containers import elf
from gpushare.remote.containers.messages import Wanted

_GLIBC = "libc.so.6"
_NUMBER = re.compile(r"GLIBC_([0-9]+)\.([0-9]+)(?:\.[0-9]+)?")


def mounts(config: dict[str, Any], view: View, carrier: str, libraries: Mapping[str, Wanted]) -> list[PlacedMount]:
    """Returns the mounts that the container needs. Raises RefusedError where its libraries are too old, or where there
    is no place for ours."""
    home = _home(view, carrier)
    kept = _usable(view, carrier, libraries)
    found: dict[str, PlacedMount] = {}
    for name, library in libraries.items():
        if name in kept:
            continue
        for path in _copies(config, view, name) if library.driver else []:
            found[path] = _placed(library.host, path, make=False)
        for place in (f"{home}/{alias}" for alias in (_aliases(name) if library.driver else [name])):
            if not view.resolve(place).exists():
                _check(view, place)
                found[place] = _placed(library.host, place, make=True)
    return list(found.values())


def _placed(host: str, path: str, *, make: bool) -> PlacedMount:
    options = Mount(host, path).options
    return PlacedMount(
        source=host, destination=path, options=options, inside=False, make=make, optional=False, shows=[]
    )


def _check(view: View, place: str) -> None:
    if not view.creatable(place):
        directory = place.rpartition("/")[0]
        raise RefusedError(
            f"{place} cannot be made in the container, since its {directory} is read-only or the host's own: use an "
            "image that has these directories itself"
        )


def _home(view: View, carrier: str) -> str:
    """Returns the directory with the image's C library."""
    for directory in preload.LIBRARY_DIRS:
        place = view.resolve(f"{directory}/{_GLIBC}")
        if place.is_file():
            return view.resolve(directory).container
    musl = any(view.names(directory, "ld-musl-", "libc.musl-") for directory in ("/lib", "/usr/lib"))
    what = "musl, with which they do not work" if musl else "no C library where distributions have theirs"
    raise RefusedError(
        f"the client libraries of carrier {carrier} need glibc, and the container's image has {what}: use an image of "
        "Debian, Ubuntu, Fedora or the like"
    )


def _usable(view: View, carrier: str, libraries: Mapping[str, Wanted]) -> set[str]:
    """Returns those of our libraries that the image has itself, so that its own are used. Raises RefusedError where a
    library of the image is older than ours need it."""
    kept = set[str]()
    needs: dict[str, set[str]] = {}
    for library in libraries.values():
        for file in library.needed:
            needs.setdefault(file, set()).update(library.versions.get(file, ()))
    for file, versions in needs.items():
        if file in libraries and libraries[file].driver:
            continue
        data = _read(view, file)
        if data is None:
            continue  # ours is put there; or the loader says that there is none
        theirs = elf.read(data)
        missing = versions - (theirs.has if theirs is not None else set())
        if missing:
            raise RefusedError(_too_old(carrier, file, missing, theirs))
        if file in libraries:
            kept.add(file)
    return kept


def _too_old(carrier: str, file: str, missing: set[str], theirs: elf.Library | None) -> str:
    has = _highest(theirs.has if theirs is not None else set())
    need = _highest(missing)
    if need and has:
        return (
            f"the container's glibc is {has}, and the client libraries of carrier {carrier} need {need} or later: use "
            "an image with a newer one, or client libraries that were built for an older one"
        )
    return (
        f"the container's {file} has no {sorted(missing)[-1]}, which the client libraries of carrier {carrier} need: "
        "use an image with a newer one"
    )


def _highest(versions: set[str] | frozenset[str]) -> str:
    """Returns the number of the newest glibc among them; empty if they are none of glibc's."""
    numbers = [(int(match[1]), int(match[2])) for match in map(_NUMBER.fullmatch, versions) if match]
    return "{}.{}".format(*max(numbers)) if numbers else ""


def _read(view: View, file: str) -> bytes | None:
    if "/" in file:
        return None
    for directory in preload.LIBRARY_DIRS:
        if view.resolve(f"{directory}/{file}").is_file():
            return view.read(f"{directory}/{file}", elf.SIZE_MAX)
    return None


def _copies(config: dict[str, Any], view: View, name: str) -> list[str]:
    """Returns the files under this name that the container's programs could find."""
    directories = [*preload.LIBRARY_DIRS, *oci.variable(config, "LD_LIBRARY_PATH").split(":")]
    directories += [f"/usr/local/{version}/compat" for version in view.names("/usr/local", "cuda")]
    paths = [
        f"{directory}/{alias}" for directory in directories if directory.startswith("/") for alias in _aliases(name)
    ]
    places = [view.resolve(path) for path in paths if not path.rpartition("/")[0].endswith("/stubs")]
    return sorted({place.container for place in places if place.is_file()})


def _aliases(name: str) -> list[str]:
    """Returns the names by which programs open it: of libcuda.so.1 also libcuda.so."""
    return list(dict.fromkeys([name, re.sub(r"\.so(\.[0-9]+)*$", ".so", name)]))
