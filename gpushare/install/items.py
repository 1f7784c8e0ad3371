"""The items to install, and where."""

import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpushare import paths
from gpushare.errors import FailedError

Kind = Literal["part", "config", "link", "enable"]

UNIT = "gpushare.service"
NRI_UNIT = "gpushare-nri.service"  # for the administrator to enable, where an engine is configured for it
PROMETHEUS_UNIT = "gpushare-prometheus.service"  # likewise, where Prometheus is to scrape this node
STATE = Path("/var/lib/gpushare")
CONFIG = Path("/etc/gpushare")
SYSUSERS = Path("/etc/sysusers.d/gpushare.conf")
TMPFILES = Path("/etc/tmpfiles.d/gpushare.conf")
_UNITS = Path("/etc/systemd/system")
_COMMANDS = Path("/usr/local/bin")
_PACKAGED_COMMAND = "/usr/bin/gpushare"  # what the files in packaging/ name


@dataclass(frozen=True, slots=True)
class Item:
    """A file or a symlink. Kinds: `part`: ours, replaced by each version. `config`: the administrator's once it
    exists. `link`: a command, dispensable. `enable`: what `systemctl enable` makes and `disable` removes.

    `content`: the file's text, or the symlink's target.
    """

    path: Path
    kind: Kind
    content: str

    @property
    def is_link(self) -> bool:
        """Whether it is a symlink."""
        return self.kind in ("link", "enable")


def _quoted(word: str) -> str:
    """Quotes a word of a command line in a systemd unit."""
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{text}"' if text != word or not word or any(one.isspace() or one in "';" for one in word) else word


def items(root: Path = Path("/")) -> list[Item]:
    """Returns all items in the order of installation. The units start gpushare with this Python interpreter, isolated
    from environment and working directory (-I). `root`: paths below it are written relative to it.

    Raises FailedError if this gpushare came in a package, which has no items.
    """
    if not paths.PACKAGING.is_dir():
        raise FailedError("this gpushare came in a package, which has put everything in place: there is nothing to do")
    packaged = {file.name: file.read_text() for file in sorted(paths.PACKAGING.iterdir())}
    command = [_inside(root, Path(sys.executable)), "-I", "-m", "gpushare"]
    units = {
        name: packaged[name].replace(_PACKAGED_COMMAND, " ".join(map(_quoted, command)))
        for name in (UNIT, NRI_UNIT, PROMETHEUS_UNIT)
    }
    script = Path(sysconfig.get_path("scripts")) / "gpushare"
    return [
        Item(CONFIG / "gpushare.toml", "config", packaged["gpushare.toml"]),
        Item(CONFIG / "tenants.toml", "config", packaged["tenants.toml"]),
        Item(CONFIG / "prices.toml", "config", packaged["prices.toml"]),
        Item(SYSUSERS, "part", packaged["gpushare.sysusers"]),
        Item(TMPFILES, "part", packaged["gpushare.tmpfiles"]),
        *(Item(_UNITS / name, "part", text) for name, text in units.items()),
        Item(_UNITS / "multi-user.target.wants" / UNIT, "enable", f"{_UNITS}/{UNIT}"),
        Item(_COMMANDS / "gpushare", "link", _inside(root, script)),
        Item(_COMMANDS / paths.RUNTIME_WRAPPER.name, "link", _inside(root, paths.RUNTIME_WRAPPER)),
    ]


def _inside(root: Path, path: Path) -> str:
    return f"/{path.relative_to(root)}" if path.is_relative_to(root) else str(path)
