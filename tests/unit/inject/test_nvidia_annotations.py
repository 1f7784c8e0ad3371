"""NVIDIA's annotation words as a request (gpushare/inject/nvidia.py)."""

import pytest

from gpushare.errors import UsageError
from gpushare.inject import nvidia, oci

CONTAINERD, CRIO = nvidia.NAMES
REQUEST, LIMIT, MODE = nvidia.words("main")


def asked(annotations, name=CONTAINERD):
    return oci.request({"annotations": {name: "main", **annotations}})


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8Gi", 8 << 30), ("1536Mi", 1536 << 20), ("0.5Gi", 1 << 29), ("4096M", 4096 * 10**6), ("1G", 10**9),
        ("2e9", 2 * 10**9), ("1048576", 1 << 20), ("1024Ki", 1 << 20), ("1.0000001G", 1_000_000_100),
        ("1048576.5", (1 << 20) + 1), ("16Ti", 16 << 40),
    ],
)  # fmt: skip
def test_quantities(text, size):
    assert asked({LIMIT: text}) == {"memory": size, "time": nvidia.TIME, "ttl_seconds": oci.CREATE_SECONDS}


@pytest.mark.parametrize("name", [CONTAINERD, CRIO])
def test_the_limit_is_what_it_gets_and_one_stands_for_the_other(name):
    for annotations in ({LIMIT: "4Gi"}, {REQUEST: "4Gi"}, {REQUEST: "1Gi", LIMIT: "4Gi"}):
        assert asked({**annotations, MODE: "time-slicing"}, name)["memory"] == 4 << 30


@pytest.mark.promise("nvidia-annotations-are-requests")
@pytest.mark.parametrize(
    "text", ["", " 8Gi", "8GiB", "8gi", "-8Gi", "lots", "Gi", ".", "0", "1M", "500Ki", "17Ti", "1e99", "9" * 100, "٣Gi",
             "1Gi\n"],
)  # fmt: skip
@pytest.mark.parametrize("word", [REQUEST, LIMIT])
def test_a_bad_quantity_is_refused_by_its_name(word, text):
    with pytest.raises(UsageError, match=f"annotation {word} "):
        asked({word: text})
    with pytest.raises(UsageError, match=f"annotation {word} "):
        asked({"gpushare.dev/memory": "1GiB", "gpushare.dev/time": "5%", word: text})


def test_more_asked_than_the_limit_is_refused():
    with pytest.raises(UsageError, match=rf"annotation {REQUEST} is 2GiB, more than {LIMIT} with 1GiB"):
        asked({REQUEST: "2Gi", LIMIT: "1Gi"})


@pytest.mark.parametrize("mode", ["sm-sharing", "", "Time-Slicing", "mig"])
def test_a_mode_that_there_is_not_here_is_refused(mode):
    with pytest.raises(UsageError, match=f"annotation {MODE} is '{mode}'"):
        asked({LIMIT: "1Gi", MODE: mode})


@pytest.mark.promise("nvidia-annotations-are-requests")
@pytest.mark.parametrize(
    "annotations",
    [
        {MODE: "sm-sharing"},
        {LIMIT.replace("main", "other"): "not read"},
        {LIMIT.capitalize(): "1Gi"},
        {"nvidia.com/gpu": "all", "nvidia.com/container.main.gpus.devices": "0", "cdi.k8s.io/x": "nvidia.com/gpu=all"},
    ],
)
def test_other_words_ask_for_nothing(annotations):
    assert asked(annotations) is None


def test_without_a_name_in_a_pod_they_ask_for_nothing():
    assert oci.request({"annotations": {LIMIT: "1Gi"}}) is None
    assert asked({LIMIT: "1Gi", "io.kubernetes.cri.container-type": "sandbox"}) is None


def test_ours_go_first_word_by_word():
    both = asked({LIMIT: "4Gi", "gpushare.dev/time": "40%", "gpushare.dev/class": "inference"})
    assert (both["memory"], both["time"], both["class"]) == (4 << 30, "40%", "inference")
    assert asked({LIMIT: "4Gi", "gpushare.dev/memory": "1GiB"})["memory"] == "1GiB"
    assert asked({LIMIT: "nonsense", "gpushare.dev/grant": "g-1"}) == {"grant": "g-1"}


NAMED = {CONTAINERD: "main"}


@pytest.mark.parametrize(
    ("config", "ways"),
    [
        ({}, []),
        ({"process": None, "linux": {"devices": None}, "mounts": None, "annotations": None}, []),
        *(({"process": {"env": ["A=b", f"NVIDIA_VISIBLE_DEVICES={no}"]}}, []) for no in ("", "void", "none")),
        *(({"process": {"env": [f"NVIDIA_VISIBLE_DEVICES={yes}"]}}, ["environment"]) for yes in ("all", "0", "GPU-x")),
        ({"annotations": {"nvidia.com/gpu": "all"}}, ["annotation"]),
        ({"annotations": {"nvidia.cdi.k8s.io/container.main": "management.nvidia.com/gpu=all"}}, ["annotation"]),
        ({"annotations": {"cdi.k8s.io/x": "nvidia.com/gpu=all"}}, ["annotation"]),
        ({"annotations": {"cdi.k8s.io/x": "example.com/nic=all", "example.com/nvidia.com/": "1"}}, []),
        ({"annotations": {LIMIT: "1Gi"}}, ["annotation"]),
        ({"annotations": {**NAMED, MODE: "sm-sharing"}}, ["annotation"]),
        ({"annotations": {**NAMED, LIMIT.replace("main", "other"): "1Gi"}}, []),
        ({"linux": {"devices": [{"path": "/dev/x", "type": "c", "major": 195, "minor": 0}]}}, ["device"]),
        ({"linux": {"devices": [{"path": "/dev/nvidia-uvm", "type": "c", "major": 511, "minor": 0}]}}, ["device"]),
        ({"linux": {"devices": [{"path": "/dev/null", "type": "c", "major": 1, "minor": 3}]}}, []),
    ],
)  # fmt: skip
def test_ways_to_ask_without_a_share(config, ways):
    assert nvidia.ways(config) == ways
    shared = {**config, "mounts": [{"destination": "/run/gpushare/self"}]}
    assert nvidia.ways(shared) == []


@pytest.mark.parametrize(
    ("group", "container"),
    [
        ("system.slice:docker:abc", "abc"),
        ("/docker/abc", "abc"),
        ("machine.slice:libpod:abc", "abc"),
        ("/libpod_parent/libpod-abc", "abc"),
        ("kubepods-besteffort-podx.slice:cri-containerd:abc", "abc"),
        ("/kubepods/podx/crio-abc.scope", "abc"),
        (None, "/run/b"),
        ("/a\n\x1bb", "a??b"),
    ],
)
def test_what_a_container_is_called(group, container):
    assert nvidia.identity({"linux": {"cgroupsPath": group}}, "/run/b") == container
