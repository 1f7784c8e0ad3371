"""NRI in the configuration of containerd and CRI-O: turns it on and requires our plugin.

An engine that gets no answer from a plugin creates the container without it. containerd from 2.2 on and CRI-O can be
configured to require a plugin: then nothing is started while it is away, except pods with an annotation.
"""

from collections.abc import Mapping
from typing import Any

from gpushare.engines.edit import Facts, Version
from gpushare.engines.toml_text import listed, table
from gpushare.errors import FailedError

PLUGIN = "gpushare"
TOLERATION = "tolerate-missing-nri-plugins.noderesource.dev"
"""A pod with this annotation set to "true" is started without the plugin. Another name in the file is kept."""

SINCE = (1, 7)  # the first containerd with NRI
_REQUIRES = (2, 2)
_CONTAINERD = "io.containerd.nri.v1.nri"

Tables = dict[tuple[str, ...], dict[str, Any]]


def _required(present: Mapping[str, Any], enable: str, plugins: str, toleration: str) -> dict[str, Any]:
    names = [name for name in listed(present, (plugins,), "the configuration of NRI") if name != PLUGIN]
    return {enable: True, plugins: [*names, PLUGIN], toleration: present.get(toleration) or TOLERATION}


def containerd_table(format_of_file: int) -> tuple[str, str]:
    """Returns the path of NRI's table in a file of that format."""
    return "plugins", "nri" if format_of_file < 2 else _CONTAINERD


def containerd(
    document: Mapping[str, Any], whole: Mapping[str, Any], at: tuple[str, str], version: Version | None, required: bool
) -> Tables:
    """Returns the settings for containerd's file. `document`: the file. `whole`: the file with its imports. `at`: path
    of NRI's table. Raises FailedError if this containerd has no NRI."""
    if version and version < SINCE:
        raise FailedError("containerd before 1.7 has no NRI: leave --nri out, and use the runtime handler")
    tables: Tables = {}
    here = table(whole, *at)
    off = {_CONTAINERD, at[1]}
    disabled = document.get("disabled_plugins", [])
    if isinstance(disabled, list) and off.intersection(map(str, disabled)):
        tables[()] = {"disabled_plugins": [name for name in disabled if name not in off]}
    tables[at] = {"disable": False}
    if here.get("disable_connections"):
        tables[at]["disable_connections"] = False
    if required and (version is None or version >= _REQUIRES):
        tables[(*at, "default_validator")] = _required(
            table(here, "default_validator"), "enable", "required_plugins", "tolerate_missing_plugins_annotation"
        )
    return tables


def containerd_facts(whole: Mapping[str, Any], at: tuple[str, str], version: Version | None, facts: Facts) -> None:
    """Adds findings about containerd's NRI. Before 2.0 it is off by default."""
    if version is None or version < SINCE:
        return
    here = table(whole, *at)
    names = whole.get("disabled_plugins", [])
    if here.get("disable", version < (2,)) or _CONTAINERD in names or at[1] in names:
        facts.notes.append("NRI is off: only containers of our runtime can ask for a share; --nri turns it on")
        return
    _connections(here.get("disable_connections", False), here.get("socket_path"), facts)
    if version < _REQUIRES:
        facts.notes.append(
            "NRI is on; containerd before 2.2 cannot require a plugin: without ours, pods that ask by it start "
            "with neither share nor GPU"
        )
    else:
        validator = table(here, "default_validator")
        _plugin_required(bool(validator.get("enable")), validator.get("required_plugins", []), facts)


def crio(present: Mapping[str, Any], required: bool) -> Tables:
    """Returns the settings for CRI-O's file. `present`: all of CRI-O's settings without ours."""
    tables: Tables = {("crio", "nri"): {"enable_nri": True}}
    if table(present, "crio", "nri").get("nri_disable_connections"):
        tables["crio", "nri"]["nri_disable_connections"] = False
    if required:
        tables["crio", "nri", "default_validator"] = _required(
            table(present, "crio", "nri", "default_validator"),
            "nri_enable_default_validator",
            "nri_validator_required_plugins",
            "nri_validator_tolerate_missing_plugins_annotation",
        )
    return tables


def crio_facts(whole: Mapping[str, Any], facts: Facts) -> None:
    """Adds findings about CRI-O's NRI."""
    here = table(whole, "crio", "nri")
    if not here.get("enable_nri", True):
        facts.notes.append("NRI is off: only containers of our runtime can ask for a share; --nri turns it on")
        return
    _connections(here.get("nri_disable_connections", False), here.get("nri_listen"), facts)
    validator = table(here, "default_validator")
    enabled = bool(validator.get("nri_enable_default_validator"))
    _plugin_required(enabled, validator.get("nri_validator_required_plugins", []), facts)


def is_required(settings: Any) -> bool:
    """Whether any of an engine's settings requires our plugin."""
    if not isinstance(settings, dict):
        return False
    return any(
        is_required(value) or (key.endswith("required_plugins") and isinstance(value, list) and PLUGIN in value)
        for key, value in settings.items()
    )


def _connections(refused: bool, socket: str | None, facts: Facts) -> None:
    if refused:
        facts.notes.append("NRI takes no connections of plugins: disable_connections; --nri sets that right")
    if socket and socket not in ("/var/run/nri/nri.sock", "/run/nri/nri.sock"):
        facts.notes.append(f"its NRI socket is {socket}: `gpushare adapter nri --nri-socket {socket}`")


def _plugin_required(enabled: bool, names: list[str], facts: Facts) -> None:
    if not enabled or PLUGIN not in names:
        facts.notes.append(
            "NRI is on, and our plugin is not required: without it, pods that ask by it start with neither share "
            "nor GPU; --nri requires it"
        )
