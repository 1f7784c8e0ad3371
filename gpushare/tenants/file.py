"""The file, table by table. Checks the form of each policy, not whether the node has what it promises."""

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from gpushare.api.tenants import TenantPatch, TenantPolicy
from gpushare.errors import FailedError, GpushareError, RefusedError, UsageError
from gpushare.text import names, toml
from gpushare.text.units import BARE_BYTES_MIN, format_time, parse_node_time, parse_size

_ABOUT = re.compile(r"tenant ([^\s:]+): (.*)", re.DOTALL)
TIMES = ("time", "time_limit")
"""In the file these are texts, with a unit."""
_QUANTITIES = {**dict.fromkeys(TIMES, parse_node_time), **dict.fromkeys(("memory", "host_memory"), parse_size)}
_FORM = "tenants are written as [tenants.NAME]"


@dataclass(frozen=True, slots=True)
class Policies:
    """Policies by name, and the file that has the line of each; None: there is no file."""

    by_name: dict[str, TenantPolicy]
    file: toml.File | None = None

    def located(self, act: Callable[[], Any]) -> Any:
        """Returns what `act` returns. Its errors get the file in front and, where they begin with `tenant NAME:`, the
        line of that tenant's key that they name, or of the tenant."""
        try:
            return act()
        except GpushareError as error:
            about = _ABOUT.match(str(error))
            raise type(error)(f"{self._place(*about.groups()) if about else self._place()}: {error}") from None

    def _place(self, name: str = "", message: str = "") -> str:
        assert self.file is not None
        return _place(self.file, name, message)


def read(path: Path) -> Policies:
    """The policies in the file; empty where there is no file. Raises UsageError with the file and the line."""
    try:
        file = toml.read(path)
    except FileNotFoundError:
        return Policies({})
    unknown = sorted(set(file.values) - {"tenants"})
    if unknown:
        raise UsageError(f"{file.place(unknown[0])}: unknown {unknown[0][:80]!r}: {_FORM}")
    tables = file.values.get("tenants", {})
    if not isinstance(tables, dict):
        raise UsageError(f"{file.place('tenants')}: tenants is not a table: {_FORM}")
    return Policies({name: _policy(file, name, table) for name, table in tables.items()}, file)


def _policy(file: toml.File, name: str, table: Any) -> TenantPolicy:
    try:
        names.tenant(name)
    except UsageError as error:
        raise UsageError(f"{file.place('tenants', name)}: {error}") from None
    if not isinstance(table, dict):
        raise UsageError(f"{file.place('tenants', name)}: tenant {name} is not a table: {_FORM}")
    try:
        return _check_units(msgspec.convert(table, TenantPolicy))
    except (msgspec.ValidationError, UsageError) as error:
        raise UsageError(f"{_place(file, name, str(error))}: tenant {name}: {error}") from None


def _check_units(policy: TenantPolicy) -> TenantPolicy:
    """The policy itself. Raises UsageError for a number that is milli or a few bytes to the node API, and that a person
    wrote with another unit in mind."""
    for key, parsed in _QUANTITIES.items():
        if (value := getattr(policy, key)) and isinstance(value, int):
            try:
                parsed(str(value))
            except UsageError as error:
                # The message begins with the kind of quantity and the number.
                raise UsageError(f"{key} {str(error).partition(' ')[2]}, in quotes") from None
    return policy


def _as_text(policy: TenantPolicy) -> dict[str, Any]:
    """The policy as a person would write it in the file."""
    values: dict[str, Any] = msgspec.to_builtins(policy)
    for key in _QUANTITIES:
        if (value := values.get(key)) and isinstance(value, int):
            if key in TIMES:
                values[key] = format_time(value)
            elif value < BARE_BYTES_MIN:
                values[key] = f"{value}B"
    return values


def _place(file: toml.File, name: str, message: str) -> str:
    """Place of the key of this tenant that `message` names first, or of the tenant."""
    table = file.values.get("tenants", {}).get(name, {})
    found = [(match.start(), key) for key in table if (match := re.search(rf"(?<!\w){re.escape(key)}(?!\w)", message))]
    return file.place("tenants", name, *(key for _, key in sorted(found)[:1]))


def patched(path: Path, name: str, patch: TenantPatch) -> tuple[TenantPolicy | None, TenantPolicy]:
    """A tenant's policy as the file has it now, None where it has none, and as the patch makes it. Raises UsageError
    for a file that was broken by hand."""
    try:
        written = read(path).by_name.get(name)
    except UsageError as error:
        raise _broken(path, error) from None
    values = {**msgspec.to_builtins(written or TenantPolicy(source=patch.source)), **msgspec.to_builtins(patch)}
    if written is not None:
        values["source"] = written.source
    return written, msgspec.convert({key: one for key, one in values.items() if one is not None}, TenantPolicy)


def write(
    path: Path, name: str, policy: TenantPolicy | None, check: Callable[[Mapping[str, TenantPolicy]], object]
) -> None:
    """Replaces one tenant's table; None: removes it. `check` is given all policies that the file will have, and raises
    if they cannot be read again: some may have been changed by hand. Raises UsageError for a file that was broken by
    hand, what `check` raises, and FailedError where it cannot be written; then nothing was changed."""
    # Costs 30 ms to import and is needed by administrators' calls only.
    import tomlkit

    # It may have been edited by hand since it was read.
    try:
        now = read(path)
        document = tomlkit.parse(now.file.text if now.file is not None else "")
        policies = {other: one for other, one in now.by_name.items() if other != name}
        check(policies if policy is None else {**policies, name: policy})
    except RefusedError as error:
        raise RefusedError(f"{path} was changed by hand: {error}, there or here, nothing was changed") from None
    except (UsageError, ValueError) as error:
        raise _broken(path, error) from None
    wanted = dict(now.file.values.get("tenants", {})) if now.file is not None else {}
    wanted.pop(name, None)
    if policy is not None:
        wanted[name] = _as_text(policy)
    try:
        _change(document, name, wanted.get(name))
        text = tomlkit.dumps(document)
        changed = tomllib.loads(text).get("tenants", {})
    except (ValueError, TypeError):
        changed = None
    if changed != wanted:  # tomlkit misplaces what is added next to dotted keys
        raise UsageError(f"{path}: it cannot be changed as it is written: {_FORM}, or change it by hand and reload it")
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "w", encoding="utf-8", opener=lambda file, flags: os.open(file, flags, 0o644)) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise FailedError(f"{path} cannot be written ({error.strerror}): nothing was changed") from None


def _broken(path: Path, error: Exception) -> UsageError:
    message = str(error) if isinstance(error, UsageError) else f"{path}: {error}"
    return UsageError(f"{message}: mend it first, nothing was changed")


def _change(document: Any, name: str, values: Mapping[str, Any] | None) -> None:
    import tomlkit
    from tomlkit.items import InlineTable

    tables = document.setdefault("tenants", tomlkit.table(is_super_table=True))
    if values is None:
        tables.pop(name, None)
        return
    table = tables.get(name)
    if table is None:
        table = tomlkit.inline_table() if isinstance(tables, InlineTable) else tomlkit.table()
    for key in list(table):
        if key not in values:
            del table[key]
    for key, value in values.items():
        table[key] = value
    tables[name] = table
