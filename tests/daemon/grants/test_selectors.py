"""Grants on devices that match the request's selector, and the attributes that the node reports."""

import json

import pytest

from gpushare.errors import RefusedError, UsageError

GIB = 1 << 30


def test_a_device_that_is_as_wanted(client):
    assert client.create(memory=GIB, time=100, selector="index == 1")["devices"][0]["index"] == 1
    both = client.create(memory=GIB, time=100, devices=2, selector="memory >= 16Gi && arch == 'Ampere' && cc >= 8.0")
    assert len(both["devices"]) == 2
    with pytest.raises(RefusedError, match="none of this node's 2 devices is one that was selected"):
        client.create(memory=GIB, time=100, selector="memory > 16Gi")
    with pytest.raises(RefusedError, match="the node has 1"):
        client.create(memory=GIB, time=100, devices=2, selector="index == 1")
    with pytest.raises(UsageError, match="selector, column 8"):
        client.create(memory=GIB, time=100, selector="memory ~ 16Gi")
    assert client.plan(memory=GIB, time=100, selector="memory > 16Gi")["fits"] is False


def test_on_the_command_line(daemon):
    words = ["--memory", "1GiB", "--time", "10%", "--selector", "index in (1)", "--json"]
    assert json.loads(daemon.cli_here("grant", "create", *words).stdout)["devices"][0]["index"] == 1


def test_labels(daemon):
    lines = dict(line.split("=") for line in daemon.cli_here("labels").stdout.splitlines())
    assert lines["gpushare.dev/gpu.count"] == "2"
    assert lines["gpushare.dev/gpu.architecture"] == "Ampere"
    assert lines["gpushare.dev/gpu.product"] == "gpushare-simulated-GPU"
    assert lines["gpushare.dev/gpu.memory-mib"] == str(16 << 10)
    found = json.loads(daemon.cli_here("labels", "--format", "json").stdout)
    assert found["labels"] == lines
    assert [device["index"] for device in found["devices"]] == [0, 1]
    gres = daemon.cli_here("labels", "--format", "gres").stdout
    assert "Name=gpu File=/dev/nvidia0\n" in gres and "Name=shard Count=100 File=/dev/nvidia1\n" in gres
