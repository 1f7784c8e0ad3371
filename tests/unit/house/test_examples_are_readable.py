"""The examples say what they are, are all in their table, and can be read by shells, Kubernetes and the DRA driver."""

import re
import subprocess

import pytest
import yaml
from run.built import ROOT
from schedulers.apiserver import check

from gpushare.adapters.kubernetes import DRIVER
from gpushare.adapters.kubernetes.claims import wanted
from gpushare.adapters.kubernetes.slices import device_name

EXAMPLES = ROOT / "examples"
FILES = sorted(path for path in EXAMPLES.iterdir() if path.suffix in (".py", ".sh", ".yaml"))
SCRIPTS = [path for path in FILES if path.suffix == ".sh"]
MODELS = {"Pod": "V1Pod", "ResourceClaimTemplate": "V1ResourceClaimTemplate"}


def test_the_table_has_them_all():
    text = (EXAMPLES / "README.md").read_text()
    rows = dict(re.findall(r"^\| \[([^]]+)\]\(\1\) \| .* \| `(.*)` \|$", text, re.MULTILINE))
    assert sorted(rows) == [path.name for path in FILES]
    assert all(f"examples/{name}" in command for name, command in rows.items())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_each_states_how_it_is_run(path):
    head = path.read_text().partition("set -eu" if path.suffix == ".sh" else "import argparse")[0][:1500]
    assert re.search(rf"(python|sudo|sbatch|apply -f|^#  ).*{re.escape(path.name)}", head, re.MULTILINE), head


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_shell_reads_it(path):
    assert path.read_text().startswith("#!/bin/sh\n") and path.stat().st_mode & 0o111
    assert subprocess.run(["sh", "-n", path], capture_output=True).stderr == b""


def allocated(template):
    """A template's claim as the scheduler allocates it, on the first device."""
    devices = template["spec"]["spec"]["devices"]
    results = [
        {
            "request": request["name"], "driver": DRIVER, "pool": "node", "device": device_name("GPU-1"),
            "consumedCapacity": request["exactly"]["capacity"]["requests"],
        }
        for request in devices["requests"]
    ]  # fmt: skip
    config = [{**one, "source": "FromClaim", "requests": []} for one in devices.get("config", ())]
    return {
        "metadata": {"name": "c", "namespace": "n", "uid": "1"},
        "status": {"allocation": {"devices": {"results": results, "config": config}}},
    }


def test_the_claims_are_valid_and_ask_for_what_the_head_states():
    found = list(yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text()))
    for one in found:
        check(one, MODELS[one["kind"]], one["kind"])
    templates = {one["metadata"]["name"]: one for one in found if one["kind"] == "ResourceClaimTemplate"}
    asked = {name: wanted(allocated(one), "node", [{"id": "GPU-1"}], []) for name, one in templates.items()}
    [inference], [training] = asked["inference"], asked["training"]
    assert (inference.ask["time"], inference.ask["memory"], inference.ask["class"]) == (300, 4 << 30, "interactive")
    assert (training.ask["time"], training.ask["memory"], training.ask.get("class")) == (200, 8 << 30, None)
    pods = {one["metadata"]["name"]: one["spec"] for one in found if one["kind"] == "Pod"}
    assert {spec["resourceClaims"][0]["resourceClaimTemplateName"] for spec in pods.values()} == set(templates)
