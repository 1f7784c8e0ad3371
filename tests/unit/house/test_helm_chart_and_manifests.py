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
    "RuntimeClass": "V1RuntimeClass", "ConfigMap": "V1ConfigMap", "ResourceClaimTemplate": "V1ResourceClaimTemplate",
}  # fmt: skip


def load():
    spec = importlib.util.spec_from_file_location("manifests", ROOT / "scripts" / "manifests.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


manifests = load()
SCHEMA = jsonschema.Draft7Validator(json.loads((manifests.CHART / "values.schema.json").read_text()))


def objects(text):
    """By kind; the DaemonSets by their component."""
    found = list(yaml.safe_load_all(text))
    return {one["metadata"].get("labels", {}).get("app.kubernetes.io/component", one["kind"]): one for one in found}


def with_values(**changed):
    """Values as Helm gives them to its check, and to templates."""
    return manifests.merged(manifests.values(), changed)


def pods(found):
    return [found[name]["spec"]["template"] for name in ("adapter", "daemon") if name in found]


def test_the_chart_is_one_that_helm_reads():
    """Before anything else of it: a Chart.yaml that is not YAML is no chart."""
    chart = yaml.safe_load((manifests.CHART / "Chart.yaml").read_text())
    assert (chart["apiVersion"], chart["name"], chart["version"]) == ("v2", "gpushare", chart["appVersion"])


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
    pod = objects(manifests.manifests(**changed))["adapter"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    program, *arguments = container["command"]
    assert program == "gpushare"
    args = build_parser().parse_args(arguments)
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {str(args.kubelet_dir), str(Path(args.socket).parent)} == mounts


def test_the_daemon_comes_with_it_unless_the_node_has_its_own():
    texts = {"config": 'log_level = "debug"\n[audit]\nevader = "kill"\n', "tenants": "[tenants.vision]\ntime = '40%'\n"}
    found = objects(manifests.manifests("kubernetes", daemon={"simulate": "2x16GiB", **texts}))
    template = found["daemon"]["spec"]["template"]
    [container], [init] = template["spec"]["containers"], template["spec"]["initContainers"]
    enters, program = container["command"].index("--"), "/opt/gpushare/bin/gpushare"
    assert container["command"][enters + 1] == program
    assert build_parser().parse_args(container["command"][enters + 2 :]).simulate == "2x16GiB"
    for probe in ("startupProbe", "livenessProbe"):
        command = container[probe]["exec"]["command"]
        assert build_parser().parse_args(command[command.index(program) + 1 :]).json
    assert found["ConfigMap"]["data"] == {"gpushare.toml": texts["config"], "tenants.toml": texts["tenants"]}
    assert {mount["mountPath"] for mount in init["volumeMounts"]} == {"/host/opt", *init["command"][3:]}
    without = objects(manifests.manifests("kubernetes"))
    assert template["metadata"]["annotations"] != without["daemon"]["spec"]["template"]["metadata"]["annotations"]
    assert set(found) - set(without) == {"ConfigMap"}
    assert set(without) - set(objects(manifests.manifests("kubernetes", daemon={"enabled": False}))) == {"daemon"}


def test_metrics_are_there_for_whoever_asks_for_them():
    found = objects(manifests.manifests("kubernetes", metrics={"enabled": True, "port": 9500, "podMonitor": True}))
    _, container = found["adapter"]["spec"]["template"]["spec"]["containers"]
    [port] = container["ports"]
    assert build_parser().parse_args(container["command"][1:]).listen == f"0.0.0.0:{port['containerPort']}"
    [endpoint] = found["PodMonitor"]["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] == port["name"]
    labels = found["adapter"]["spec"]["template"]["metadata"]["labels"]
    assert found["PodMonitor"]["spec"]["selector"]["matchLabels"].items() <= labels.items()


DIGEST = "sha256:" + "0a" * 32
TAG = manifests.values()["image"]["tag"]
EXPECTED = {
    "imagePullSecrets": [{"name": "registry"}],
    "nodeSelector": {"pool": "gpu", "gpushare.dev/node": None},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]}]}]}}},
    "priorityClassName": "",
    "podAnnotations": {"cluster-autoscaler.kubernetes.io/daemonset-pod": "true"},
    "podLabels": {"team": "infra"},
    "resources": {"limits": {"memory": "1Gi", "cpu": "2"}},
    "daemon": {"resources": {"requests": {"cpu": "500m"}}},
}  # fmt: skip


def test_values_that_people_expect_are_of_both_pods():
    SCHEMA.validate(with_values(**EXPECTED))
    found = objects(manifests.manifests("kubernetes", **EXPECTED))
    for template in pods(found):
        spec, metadata = template["spec"], template["metadata"]
        for name in ("imagePullSecrets", "tolerations", "affinity"):
            assert spec[name] == EXPECTED[name]
        assert spec["nodeSelector"] == {"pool": "gpu"}
        assert "priorityClassName" not in spec
        assert metadata["labels"]["team"] == "infra"
        assert metadata["annotations"].items() >= EXPECTED["podAnnotations"].items()
    [adapter], [daemon] = (template["spec"]["containers"] for template in pods(found))
    assert adapter["resources"] == {
        "limits": {"memory": "1Gi", "cpu": "2"},
        "requests": {"cpu": "10m", "memory": "64Mi"},
    }
    assert daemon["resources"] == {"limits": {"memory": "4Gi"}, "requests": {"cpu": "500m", "memory": "256Mi"}}


@pytest.mark.parametrize(
    ("changed", "image"),
    [
        ({"image": {"repository": "registry.example:5000/team/gpushare", "digest": DIGEST}},
         f"registry.example:5000/team/gpushare:{TAG}@{DIGEST}"),
        ({"image": {"tag": "main"}}, "localhost/gpushare:main"),
        ({"kubeletDirectory": "/var/lib/rancher/k3s/agent/kubelet", "runDirectory": "/run/gpushare/"}, None),
        ({"runtimeClass": "gpushare-2", "tenant": "labs/1.0", "slots": 1}, None),
        (EXPECTED, None),
    ],
    ids=str,
)  # fmt: skip
def test_values_that_can_be_set_come_out_as_they_are(changed, image):
    SCHEMA.validate(with_values(**changed))
    for adapter in manifests.ADAPTERS:
        found = objects(manifests.manifests(adapter, **changed))
        for one in found.values():
            check(one, MODELS[one["kind"]], one["kind"])
        for template in pods(found):
            for container in (*template["spec"]["containers"], *template["spec"].get("initContainers", [])):
                assert container["image"] == (image or f"localhost/gpushare:{TAG}")


@pytest.mark.parametrize(
    "changed",
    [
        {"adapter": "deviceplugin"}, {"adapter": ""}, {"Adapter": "device-plugin"}, {"nodeSelectors": {"a": "b"}},
        {"slots": 0}, {"slots": SLOTS_MAX + 1}, {"slots": "ten"}, {"slots": 1.5}, {"sizes": "annotation"},
        {"tenant": ""}, {"tenant": "a #b"}, {"tenant": "a: b"}, {"tenant": "a\n- b"}, {"tenant": ["a"]},
        {"image": "gpushare:0.1.0"}, {"image": {"name": "gpushare"}}, {"image": {"repository": ""}},
        {"image": {"repository": "a:b"}}, {"image": {"tag": 1.5}}, {"image": {"digest": "sha256:1"}},
        {"image": {"pullPolicy": "always"}}, {"imagePullSecrets": ["registry"]}, {"imagePullPolicy": "Always"},
        {"nodeSelector": {"*": "a"}}, {"nodeSelector": {"a b": "c"}}, {"nodeSelector": {"a": True}},
        {"tolerations": [{"key": "a", "operater": "Exists"}]}, {"affinity": {"nodeAfinity": {}}},
        {"resources": {"limit": {}}}, {"resources": {"limits": {"memory": "1GiB"}}},
        {"podLabels": {"app.kubernetes.io/name": "other"}}, {"priorityClassName": "High"},
        {"daemon": {"enable": True}}, {"daemon": {"enabled": "yes"}}, {"daemon": {"simulate": "16GiB"}},
        {"metrics": {"port": "9417"}}, {"metrics": True}, {"metrics": {"podMonitor": True}},
        {"daemon": {"config": {"log_level": "info"}}}, {"daemon": {"resources": {"memory": "1Gi"}}},
        {"runtimeClass": ""}, {"runtimeClass": "GPU_Share"}, {"runtimeClass": "off"}, {"runtimeClass": "1"},
        {"runDirectory": "run"}, {"kubeletDirectory": "/a: b"}, {"kubeletDirectory": None},
    ],
    ids=str,
)  # fmt: skip
def test_values_that_nothing_could_use_are_refused(changed):
    """By Helm itself, before anything is installed: it reads the schema."""
    assert not SCHEMA.is_valid(with_values(**changed))


def test_the_schema_is_of_the_values_and_of_the_adapters():
    properties = SCHEMA.schema["properties"]
    assert set(SCHEMA.schema["required"]) == set(manifests.values()) == set(properties) - {"global"}
    assert properties["adapter"]["enum"] == list(manifests.ADAPTERS)
    assert properties["slots"]["maximum"] == SLOTS_MAX
    assert properties["tenant"]["pattern"] == TENANT_NAME
    for part in ("image", "daemon", "metrics"):
        assert set(properties[part]["required"]) == set(properties[part]["properties"]) == set(manifests.values()[part])
    SCHEMA.check_schema(SCHEMA.schema)
    SCHEMA.validate(manifests.values())


def test_a_word_that_helm_has_and_this_does_not():
    with pytest.raises(ValueError, match="lookup"):
        manifests.render("a: {{ lookup .Values.slots }}", manifests.values())
    with pytest.raises(ValueError, match="no end"):
        manifests.render('{{- if eq .Values.adapter "x" }}', manifests.values())
    with pytest.raises(KeyError):
        manifests.render("{{ .Values.absent }}", manifests.values())


def test_the_image_is_put_on_a_node_whole_and_what_is_an_administrators_stays(tmp_path):
    """What the daemon's init container runs, on a tree and a node of this test's."""
    tree, opt, etc, given = tmp_path / "image" / "gpushare", tmp_path / "opt", tmp_path / "etc", tmp_path / "given"
    for directory in (tree / "bin", opt, etc, given):
        directory.mkdir(parents=True)

    def put(version, **texts):
        (tree / ".image").write_text(version)
        (tree / "bin" / version).touch()
        for file in given.iterdir():
            file.unlink()
        for name, text in texts.items():
            (given / f"{name}.toml").write_text(text)
        command = [KUBERNETES / "image" / "gpushare-put", tree, opt, etc, given]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    there, own = opt / "gpushare", etc / "tenants.toml"
    assert put("one", gpushare="simulate = '1x1GiB'\n").returncode == 0
    inode = there.stat().st_ino
    assert "simulate = '1x1GiB'\n" in (etc / "gpushare.toml").read_text()
    assert put("one").returncode == 0
    assert there.stat().st_ino == inode
    assert not (etc / "gpushare.toml").exists()
    own.write_text("# all lines are comments, as `gpushare install` puts it\n")
    assert put("two", tenants="[tenants.a]\n").returncode == 0
    assert sorted(one.name for one in (there / "bin").iterdir()) == ["one", "two"]
    assert [one.name for one in opt.iterdir()] == ["gpushare"]
    own.write_text("[tenants.mine]\n")
    refused = put("three", tenants="[tenants.a]\n")
    assert (refused.returncode, own.read_text()) == (1, "[tenants.mine]\n")
    assert "leave the chart's value empty" in refused.stderr
    assert (there / ".image").read_text() == "two"
    assert put("three").returncode == 0
    (there / ".image").unlink()
    refused = put("four")
    assert refused.returncode == 1
    assert "daemon.enabled=false" in refused.stderr
    assert not (there / "bin" / "four").exists()
