"""The files that a package installs agree with the code."""

import tomllib
from pathlib import Path

import msgspec

from gpushare.api.types import TenantPolicy
from gpushare.daemon.config import Config

PACKAGING = Path(__file__).parents[2] / "packaging"


def uncommented(name):
    """The file with its commented examples enabled."""
    lines = (PACKAGING / name).read_text().splitlines()
    values = [line.removeprefix("# ") for line in lines if line.startswith("# ") and (" = " in line or line[2] == "[")]
    return tomllib.loads("\n".join(values))


def test_installed_files_change_nothing():
    for name in ("gpushare.toml", "tenants.toml"):
        assert tomllib.loads((PACKAGING / name).read_text()) == {}


def test_examples_of_the_configuration_are_its_defaults():
    shown = uncommented("gpushare.toml")
    assert shown.pop("simulate") == "2x16GiB"
    assert msgspec.convert(shown, Config) == Config()
    assert set(shown) | {"simulate"} == {field.name for field in msgspec.structs.fields(Config)}


def test_example_tenant_names_every_field():
    [tenant] = uncommented("tenants.toml")["tenants"].values()
    assert msgspec.convert(tenant, TenantPolicy)
    assert set(tenant) == {field.name for field in msgspec.structs.fields(TenantPolicy)}


def test_unit_starts_the_daemon():
    unit = (PACKAGING / "gpushare.service").read_text()
    assert "ExecStart=/usr/bin/gpushare daemon" in unit
    assert "Type=notify" in unit
