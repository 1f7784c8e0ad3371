"""The files that a package installs agree with the code."""

import json
import shutil
import subprocess
import tomllib

import msgspec
import pytest
from run.built import ROOT

from gpushare.api.tenants import TenantPolicy
from gpushare.cli import prices
from gpushare.daemon.config import Config

PACKAGING = ROOT / "packaging"


def uncommented(name):
    """The file with its commented examples enabled."""
    lines = (PACKAGING / name).read_text().splitlines()
    values = [line.removeprefix("# ") for line in lines if line.startswith("# ") and (" = " in line or line[2] == "[")]
    return tomllib.loads("\n".join(values))


def test_installed_files_change_nothing():
    for name in ("gpushare.toml", "tenants.toml", "prices.toml"):
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


def test_example_prices_are_prices(tmp_path):
    file = tmp_path / "prices.toml"
    file.write_text("\n".join(f"{key} = {json.dumps(value)}" for key, value in uncommented("prices.toml").items()))
    found = prices.load(file)
    assert found.currency == "EUR" and found.guaranteed > found.borrowed > found.scavenged > 0


def unit():
    """All values of each setting of the unit."""
    found = {}
    for line in (PACKAGING / "gpushare.service").read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def test_unit_comes_before_what_starts_containers():
    before = {name for line in unit()["Before"] for name in line.split()}
    engines = {"docker", "containerd", "crio", "k3s", "k3s-agent", "rke2-server", "rke2-agent", "podman-restart"}
    assert {f"{name}.service" for name in engines | {"kubelet", "slurmd", "nomad"}} <= before


@pytest.mark.promise("hung-loop-restarted")
def test_unit_starts_the_daemon_and_never_gives_it_up():
    settings = unit()
    assert settings["ExecStart"] == ["/usr/bin/gpushare daemon"]
    assert settings["Type"] == ["notify"]
    assert settings["Restart"] == ["always"]
    assert settings["StartLimitIntervalSec"] == ["0"]
    assert int(settings["WatchdogSec"][0].removesuffix("s")) >= 10
    assert settings["OOMPolicy"] == ["continue"]  # a killed helper does not stop the daemon
    assert settings["KillMode"] == ["process"]
    assert int(settings["LimitNOFILE"][0]) >= 2 * 1024 * 1024 // 4


def test_unit_takes_nothing_that_the_daemon_needs():
    settings = unit()
    # Each of these makes a mount namespace, which would hide later mounts from the daemon, or a device policy.
    harmful = ("Private", "Protect", "ReadOnly", "ReadWrite", "Inaccessible", "Device", "Mount", "RootDir", "Bind")
    assert [name for name in settings if name.startswith(harmful)] == []
    dropped = settings["CapabilityBoundingSet"][0]
    assert dropped.startswith("~")
    needed = "SYS_ADMIN BPF SYS_PTRACE SYS_RESOURCE SYS_NICE KILL CHOWN DAC_OVERRIDE FOWNER MKNOD SETUID SETGID"
    assert [name for name in needed.split() if f"CAP_{name}" in dropped.split()] == []
    assert "@mount" not in settings["SystemCallFilter"][0]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.parametrize("name", ["gpushare.service", "gpushare-nri.service", "gpushare-prometheus.service"])
def test_unit_is_what_systemd_understands(tmp_path, name):
    text = (PACKAGING / name).read_text().replace("/usr/bin/gpushare", "/bin/true")
    path = tmp_path / name
    path.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", path], capture_output=True, text=True, check=False, timeout=60
    )
    answer = [line for line in done.stderr.splitlines() if "gpushare" in line]
    assert (done.returncode, answer) == (0, [])
