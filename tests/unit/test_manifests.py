"""The Helm chart and the Kubernetes manifests: made from one source, valid, and with commands that exist."""

import importlib.util
import subprocess
from pathlib import Path

import pytest
import yaml
from apiserver import check
from running import GPUSHARE

from gpushare.cli.main import build_parser

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "packaging" / "kubernetes"
MODELS = {
    "Namespace": "V1Namespace", "ServiceAccount": "V1ServiceAccount", "DaemonSet": "V1DaemonSet", "Pod": "V1Pod",
    "ClusterRole": "V1ClusterRole", "ClusterRoleBinding": "V1ClusterRoleBinding", "DeviceClass": "V1DeviceClass",
    "RuntimeClass": "V1RuntimeClass", "ResourceClaimTemplate": "V1ResourceClaimTemplate",
}  # fmt: skip


def load():
    spec = importlib.util.spec_from_file_location("manifests", ROOT / "scripts" / "manifests.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


manifests = load()


def objects(text):
    return {one["kind"]: one for one in yaml.safe_load_all(text)}


@pytest.mark.parametrize("adapter", manifests.ADAPTERS)
def test_the_manifests_are_the_charts(adapter):
    written = KUBERNETES / manifests.ADAPTERS[adapter] / "gpushare.yaml"
    assert written.read_text() == manifests.manifests(adapter), "run make manifests"


@pytest.mark.parametrize(
    "path", sorted(KUBERNETES.glob("[ds]*/*.yaml")), ids=lambda path: f"{path.parent.name}-{path.name}"
)
def test_every_object_is_valid(path):
    found = list(yaml.safe_load_all(path.read_text()))
    assert found
    for one in found:
        check(one, MODELS[one["kind"]], one["kind"])


def test_what_each_adapter_needs():
    claims, slots = (objects(manifests.manifests(adapter)) for adapter in ("kubernetes", "device-plugin"))
    assert set(claims) - set(slots) == {"ClusterRole", "ClusterRoleBinding", "DeviceClass"}
    [shown] = yaml.safe_load_all((KUBERNETES / "dra" / "deviceclass.yaml").read_text())
    assert claims["DeviceClass"] == shown
    said = subprocess.run([*GPUSHARE, "runtime", "manifest"], capture_output=True, text=True, check=True).stdout
    assert claims["RuntimeClass"] == slots["RuntimeClass"] == yaml.safe_load(said)


@pytest.mark.parametrize(
    "changed",
    [{"adapter": "kubernetes"}, {"adapter": "device-plugin"}, {"adapter": "device-plugin", "sizes": "annotations"}],
    ids=str,
)
def test_the_command_is_one_of_ours(changed):
    pod = objects(manifests.manifests(**changed))["DaemonSet"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    program, *arguments = container["command"]
    assert program == "gpushare"
    args = build_parser().parse_args(arguments)
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {str(args.kubelet_dir), str(Path(args.socket).parent)} == mounts


def test_a_word_that_helm_has_and_this_does_not():
    with pytest.raises(ValueError, match="toYaml"):
        manifests.render("a: {{ toYaml .Values.slots }}", manifests.values())
    with pytest.raises(ValueError, match="no end"):
        manifests.render('{{- if eq .Values.adapter "x" }}', manifests.values())
    with pytest.raises(KeyError):
        manifests.render("{{ .Values.absent }}", manifests.values())
