"""Reads config.json, and refuses what two readers could read differently.

runc decodes it with Go's encoding/json, which matches names in any case ("Annotations") and merges or replaces
duplicates; crun takes the exact name and one of the duplicates. The daemon must decide on what every runtime sees: an
ambiguous text is refused.
"""

import codecs
import json
from typing import Any, NoReturn

from gpushare.errors import UsageError

# The members that are read or written (inject/oci.py). Entries of lists are checked too.
_NAMES: dict[str, Any] = {
    "root": {"path": {}, "readonly": {}},
    "process": {"env": {}},
    "mounts": {"destination": {}, "type": {}, "source": {}, "options": {}},
    "hooks": {"createRuntime": {}},
    "annotations": {},
    "linux": {"devices": {"path": {}}, "resources": {"devices": {}}, "maskedPaths": {}},
}


def load(text: bytes) -> dict[str, Any]:
    """The config. Raises UsageError for a text that is not one JSON object, or that runtimes read differently."""
    if text.startswith(codecs.BOM_UTF8):
        raise UsageError("config.json begins with a byte order mark, which only some runtimes skip: save it without")
    try:
        found = json.loads(text.decode(), object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"config.json is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise UsageError("config.json is not an object")
    _check(found, _NAMES)
    return found


def dump(config: dict[str, Any]) -> bytes:
    """The text of a config."""
    return json.dumps(config, separators=(",", ":"), allow_nan=False).encode()


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"config.json has {twice[:80]!r} twice in one object: runtimes read that differently")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _check(value: Any, names: dict[str, Any]) -> None:
    if isinstance(value, list):
        for entry in value:
            _check(entry, names)
    elif isinstance(value, dict):
        # Go compares by simple folding, which also takes U+017F for s and U+212A for k: so does casefold.
        folded = {name.casefold(): name for name in names}
        for key, inner in value.items():
            wanted = folded.get(key.casefold())
            if wanted is None:
                continue
            if key != wanted:
                raise UsageError(f"config.json has {key!r}, which only some runtimes take for {wanted!r}: write that")
            if names[wanted]:
                _check(inner, names[wanted])
