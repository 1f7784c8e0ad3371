"""docs/reference/configuration.md: each key, with type and default from the types with which the daemon reads the
files, and its meaning from the comments in the installed files."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import api
import msgspec
from msgspec.structs import fields
from text import made_from, table

from gpushare.api.tenants import TenantPolicy
from gpushare.cli.prices import PRICE_MAX
from gpushare.daemon.config import RANGES, Config
from gpushare.tenants.file import TIMES

PACKAGING = Path(__file__).parents[2] / "packaging"
HEAD = """# Configuration

Three TOML files in `/etc/gpushare`. `gpushare install` writes them with all lines commented out, so
the built-in defaults apply. A mistake is reported with its file, line and key, and leaves the
settings in force unchanged.

"""
FILES = {
    "gpushare.toml": """\
Read by the daemon when it starts; `gpushare daemon --config FILE` names another one. Command-line
options override it. An unknown key is refused.
""",
    "tenants.toml": """\
What each tenant is guaranteed: a table `[tenants.NAME]` per tenant
([tenants](../guides/tenants.md)). `gpushare tenants set` edits the file and keeps its comments;
after a manual change run `systemctl reload gpushare`.
""",
    "prices.toml": """\
Prices per hour, for `gpushare usage` ([usage](../guides/usage.md)). The command reads them at each
call.
""",
}
_TITLES = ("key", "value", "default", "meaning")
_LINE = re.compile(r"# (\w+) = (.*?)(?:\s{2,}# (.*))?$")
_MORE = re.compile(r"#\s+# (.*)$")
_TABLE = re.compile(r"# \[([\w.]+)\]$")


def explained(name: str) -> dict[str, tuple[str, str]]:
    """Value and meaning of each key of a file in packaging/, by its path."""
    found: dict[str, tuple[str, str]] = {}
    section = key = ""
    for line in (PACKAGING / name).read_text().splitlines():
        if head := _TABLE.match(line):
            section = "" if head[1].startswith("tenants.") else f"{head[1]}."
        elif given := _LINE.match(line):
            key = section + given[1]
            found[key] = (given[2], given[3] or "")
        elif more := _MORE.match(line):
            value, meaning = found[key]
            found[key] = (value, f"{meaning} {more[1]}")
    return found


def _schema(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(kind))
    names = {bool: "true or false", int: "integer", float: "number", str: "text", tuple[str, ...]: "list of text"}
    return names[kind]


def leaves(kind: type, above: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(path, type, default) of each key of a configuration's type."""
    for field in fields(kind):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from leaves(field.type, f"{field.name}.")
        else:
            yield above + field.name, field.type, field.default


def _toml(value: Any) -> str:
    if value is None:
        return "not set"
    return f"`{str(value).lower() if isinstance(value, bool) else msgspec.json.encode(value).decode()}`"


def _row(key: str, kind: str, default: str, meaning: str) -> tuple[str, ...]:
    low_high = RANGES.get(key)
    bounds = f", {low_high[0]} to {low_high[1]}" if low_high else ""
    return f"`{key.rpartition('.')[2]}`", kind + bounds, default, meaning


def _node() -> str:
    text, rows, section = "", list[tuple[str, ...]](), ""
    meanings = explained("gpushare.toml")
    for key, kind, default in leaves(Config):
        head = key.rpartition(".")[0]
        if head != section:
            text += table(_TITLES, rows) + f"### [{head}]\n\n"
            rows, section = [], head
        rows.append(_row(key, _schema(kind), _toml(default), meanings[key][1]))
    return text + table(_TITLES, rows)


def _tenants() -> str:
    meanings = explained("tenants.toml")
    policy = msgspec.json.schema_components([TenantPolicy])[1]["TenantPolicy"]["properties"]
    kinds = {key: api.kind(one).removesuffix(" or null") for key, one in policy.items()} | dict.fromkeys(TIMES, "text")
    rows = [_row(key, kinds[key], _toml(one["default"]), meanings[key][1]) for key, one in policy.items()]
    return table(_TITLES, rows)


def _prices() -> str:
    rows = [
        _row(key, f"number, 0 to {PRICE_MAX}", "`0`", meaning)
        if key != "currency"
        else _row(key, "text", "not set", meaning)
        for key, (_, meaning) in explained("prices.toml").items()
    ]
    return table(_TITLES, rows)


def page() -> str:
    """The whole page."""
    text = made_from("gpushare/daemon/config.py and packaging/*.toml") + HEAD
    made: Mapping[str, Any] = {"gpushare.toml": _node, "tenants.toml": _tenants, "prices.toml": _prices}
    for name, about in FILES.items():
        text += f"## {name}\n\n{about}\n{made[name]()}"
    return text.rstrip("\n") + "\n"
