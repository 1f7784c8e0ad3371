"""What a program on this machine gets so that it finds its device at the other end of a link.

The carrier's libraries are found by LD_LIBRARY_PATH, not preloaded: a preloaded library is loaded into every program
that the command starts, with all that it needs (TLS, HTTP), and fails those that bring other versions of it. What
preloading would add is a program whose DT_RPATH names a directory with another libcuda.so.1; none is known, and on a
machine without a device there is none to find. Of gpushare's own libraries the program has nothing: its limits are held
where the device is.
"""

from collections.abc import Mapping

from gpushare.carriers.contract import Client, client_env
from gpushare.inject import preload
from gpushare.inject.process import UNSET
from gpushare.paths import GRANT_DIR_ENV, LIB_DIR, SIM_DIR_ENV

UNSET_HERE = (*UNSET, GRANT_DIR_ENV, SIM_DIR_ENV)
"""Variables of a share on this machine, in which a command may be started."""
_SEARCHED = "LD_LIBRARY_PATH"


def environment(base: Mapping[str, str], client: Client, host: str, port: int) -> dict[str, str]:
    """Returns the environment of a command. `host`, `port`: where the carrier's libraries connect to."""
    kept = {name: value for name, value in base.items() if name not in UNSET_HERE}
    if preloaded := [path for path in preload.split(kept.pop("LD_PRELOAD", "")) if not _is_ours(path)]:
        kept["LD_PRELOAD"] = ":".join(preloaded)
    changed = changes(client, host, port)
    searched = [
        path for path in kept.get(_SEARCHED, "").split(":") if path and path != client.dir and not _is_ours(path)
    ]
    return kept | changed | {_SEARCHED: ":".join([changed[_SEARCHED], *searched])}


def changes(client: Client, host: str, port: int) -> dict[str, str]:
    """Returns the variables to set; what LD_LIBRARY_PATH had before goes behind."""
    return {**client_env(client, host, port), _SEARCHED: client.dir}


def _is_ours(path: str) -> bool:
    return path.startswith(f"{LIB_DIR}/")
