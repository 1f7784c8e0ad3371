"""The Helm chart and the Kubernetes manifests: made from one source, valid, and with commands that exist."""

import importlib.util
import json
import subprocess
from pathlib import Path

import jsonschema
import pytest
import yaml
from run.built import ROOT
from run.running import GPUSHARE
from schedulers.apiserver import check

from gpushare.adapters.deviceplugin.slots import SLOTS_MAX
from gpushare.api.tenants import TENANT_NAME
from gpushare.cli.main import build_parser

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
SCHEMA = jsonschema.Draft7Validator(json.loads((manifests.CHART / "values.schema.json").read_text()))


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
    answer = subprocess.run([*GPUSHARE, "runtime", "manifest"], capture_output=True, text=True, check=True).stdout
    assert claims["RuntimeClass"] == slots["RuntimeClass"] == yaml.safe_load(answer)


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


DIGEST = "@sha256:" + "0a" * 32


@pytest.mark.parametrize(
    "changed",
    [
        {"image": f"registry.example:5000/team/gpushare{DIGEST}"},
        {"image": f"gpushare:0.1.0{DIGEST}"},
        {"kubeletDirectory": "/var/lib/rancher/k3s/agent/kubelet", "runDirectory": "/run/gpushare/"},
        {"nodeLabel": "gpu", "runtimeClass": "gpushare-2"},
        {"tenant": "labs/1.0", "slots": 1},
    ],
    ids=str,
)
def test_values_that_can_be_set_come_out_as_they_are(changed):
    SCHEMA.validate({**manifests.values(), **changed})
    for adapter in manifests.ADAPTERS:
        found = objects(manifests.manifests(adapter, **changed))
        for one in found.values():
            check(one, MODELS[one["kind"]], one["kind"])
        pod = found["DaemonSet"]["spec"]["template"]["spec"]
        assert pod["containers"][0]["image"] == changed.get("image", manifests.values()["image"])
        assert pod["nodeSelector"] == {changed.get("nodeLabel", manifests.values()["nodeLabel"]): "true"}


@pytest.mark.parametrize(
    "changed",
    [
        {"adapter": "deviceplugin"}, {"adapter": ""}, {"Adapter": "device-plugin"}, {"nodeSelector": {"a": "b"}},
        {"slots": 0}, {"slots": SLOTS_MAX + 1}, {"slots": "ten"}, {"slots": 1.5}, {"sizes": "annotation"},
        {"tenant": ""}, {"tenant": "a #b"}, {"tenant": "a: b"}, {"tenant": "a\n- b"}, {"tenant": ["a"]},
        {"image": ""}, {"image": "1.5"}, {"image": {"repository": "gpushare"}}, {"imagePullPolicy": "always"},
        {"nodeLabel": ""}, {"nodeLabel": "*"}, {"nodeLabel": "a b"}, {"nodeLabel": "yes"},
        {"runtimeClass": ""}, {"runtimeClass": "GPU_Share"}, {"runtimeClass": "off"}, {"runtimeClass": "1"},
        {"runDirectory": "run"}, {"kubeletDirectory": "/a: b"}, {"kubeletDirectory": None},
    ],
    ids=str,
)  # fmt: skip
def test_values_that_nothing_could_use_are_refused(changed):
    """By Helm itself, before anything is installed: it reads the schema."""
    assert not SCHEMA.is_valid({**manifests.values(), **changed})


def test_the_schema_is_of_the_values_and_of_the_adapters():
    properties = SCHEMA.schema["properties"]
    assert set(SCHEMA.schema["required"]) == set(manifests.values()) == set(properties) - {"global"}
    assert properties["adapter"]["enum"] == list(manifests.ADAPTERS)
    assert properties["slots"]["maximum"] == SLOTS_MAX
    assert properties["tenant"]["pattern"] == TENANT_NAME
    SCHEMA.check_schema(SCHEMA.schema)
    SCHEMA.validate(manifests.values())


def test_a_word_that_helm_has_and_this_does_not():
    with pytest.raises(ValueError, match="toYaml"):
        manifests.render("a: {{ toYaml .Values.slots }}", manifests.values())
    with pytest.raises(ValueError, match="no end"):
        manifests.render('{{- if eq .Values.adapter "x" }}', manifests.values())
    with pytest.raises(KeyError):
        manifests.render("{{ .Values.absent }}", manifests.values())
