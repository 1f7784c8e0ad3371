"""tenants.toml: read with the place of every mistake, and changed with its comments kept."""

import os
import re
from collections.abc import Callable, Mapping, MutableMapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from gpushare.api.tenants import TenantPolicy
from gpushare.daemon.config import read_toml
from gpushare.errors import FailedError, GpushareError, UsageError

_PARSER_PLACE = re.compile(r" \(at line (\d+), column \d+\)")
_TABLE = re.compile(r"""\s*\[\s*tenants\s*\.\s*(?:"([^"]*)"|'([^']*)'|([A-Za-z0-9_-]+))\s*\]""")
_ABOUT = re.compile(r"tenant ([^\s:]+): (.*)", re.DOTALL)


def read(path: Path) -> dict[str, TenantPolicy]:
    """Policies by name; none where there is no file. Raises UsageError with the file and, where it is known, the
    line."""
    try:
        document = read_toml(path)
    except FileNotFoundError:
        return {}
    except UsageError as error:
        raise UsageError(_parsed(path, str(error))) from None
    unknown = sorted(set(document) - {"tenants"})
    if unknown:
        raise UsageError(f"{path}: unknown {unknown[0]!r}: tenants are written as [tenants.NAME]")
    tables = document.get("tenants", {})
    if not isinstance(tables, dict):
        raise UsageError(f"{path}: Expected tables: tenants are written as [tenants.NAME]")
    return {name: located(path, tables, partial(_policy, name, table)) for name, table in tables.items()}


def _policy(name: str, table: Any) -> TenantPolicy:
    try:
        return msgspec.convert(table, TenantPolicy)
    except msgspec.ValidationError as error:
        raise UsageError(f"tenant {name[:80]}: {error}") from None


def _parsed(path: Path, message: str) -> str:
    """The parser's message with its line where people look for it."""
    place = _PARSER_PLACE.search(message)
    if place is None:
        return message
    return _PARSER_PLACE.sub("", message).replace(f"{path}:", f"{path}:{place[1]}:", 1)


def located(path: Path, tables: Mapping[str, Any], act: Callable[[], Any]) -> Any:
    """What `act` returns; an error of it gets the file in front and, where it begins with `tenant NAME:`, the line of
    that tenant's table or of the key that it speaks of."""
    try:
        return act()
    except GpushareError as error:
        message = str(error)
        about = _ABOUT.match(message)
        line = _line(path, about[1], about[2], tables.get(about[1])) if about is not None else None
        place = f"{path}:{line}" if line is not None else str(path)
        raise type(error)(f"{place}: {message}") from None


def _line(path: Path, name: str, said: str, table: object) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except (OSError, ValueError):
        return None
    heads = [number for number, line in enumerate(lines) if (found := _TABLE.match(line)) and name in found.groups()]
    if not heads:
        return None
    keys = [key for key in table if re.search(rf"\b{re.escape(key)}\b", said)] if isinstance(table, Mapping) else []
    for number in range(heads[0] + 1, len(lines)):
        if lines[number].lstrip().startswith("["):
            break
        if any(re.match(rf"\s*{re.escape(key)}\s*=", lines[number]) for key in keys):
            return number + 1
    return heads[0] + 1


def write(path: Path, name: str, policy: TenantPolicy | None) -> None:
    """Replaces one tenant's table; None: removes it. Raises UsageError for a file that was broken by hand, and
    FailedError where it cannot be written; then nothing was changed."""
    # Costs 30 ms to import and is needed by administrators' calls only.
    import tomlkit

    # It may have been edited by hand since it was read.
    try:
        document = tomlkit.parse(path.read_text() if path.exists() else "")
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}: mend it first, nothing was changed") from None
    tables = document.setdefault("tenants", tomlkit.table(is_super_table=True))
    if not isinstance(tables, MutableMapping):
        raise UsageError(f"{path}: tenants is not a table: mend it first, nothing was changed")
    if policy is None:
        tables.pop(name, None)
    else:
        fresh = tables.get(name)
        if not isinstance(fresh, MutableMapping):
            fresh = tomlkit.table()
        values = msgspec.to_builtins(policy)
        for key in list(fresh):
            if key not in values:
                del fresh[key]
        for key, value in values.items():
            fresh[key] = value
        tables[name] = fresh
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "w", opener=lambda file, flags: os.open(file, flags, 0o644)) as file:
            file.write(tomlkit.dumps(document))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise FailedError(f"{path} cannot be written ({error.strerror}): nothing was changed") from None
