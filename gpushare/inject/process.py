"""What a plain process (`gpushare run`) gets for its grant."""

from collections.abc import Mapping, Sequence

from gpushare.inject import grantdir, preload
from gpushare.inject.node import Granted, visible
from gpushare.paths import GRANT_DIR_ENV, INTERPOSERS, Layout


def environment(layout: Layout, grant_id: str, granted: Sequence[Granted] = ()) -> dict[str, str]:
    """The variables to set. Merge them with `merge`, which keeps the user's own LD_PRELOAD."""
    return {
        "LD_PRELOAD": ":".join(map(str, INTERPOSERS)),
        GRANT_DIR_ENV: str(grantdir.self_dir(layout, grant_id)),
        **visible(granted),
    }


def merge(base: Mapping[str, str], added: Mapping[str, str]) -> dict[str, str]:
    """`base` overridden by `added`; libraries that `base` preloads are kept."""
    merged = {**base, **added}
    if "LD_PRELOAD" in added:
        theirs = preload.split(base.get("LD_PRELOAD", ""))
        merged["LD_PRELOAD"] = ":".join(preload.ordered(theirs, preload.split(added["LD_PRELOAD"])))
    return merged
