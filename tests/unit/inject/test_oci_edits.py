import copy
import os
import shutil
from pathlib import Path

import pytest

from gpushare.errors import RefusedError, UsageError
from gpushare.inject import edits, grantdir, grantfiles, oci
from gpushare.inject.node import DeviceNode, Granted, Node
from gpushare.inject.view import View

GRANT = "g-0123456789ab"
GPU = Granted("GPU-6f1d7a3c-0000-4b5e-9c1a-8d2f00000001", (DeviceNode("/dev/nvidia0", 195, 0),))


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """An image with merged /usr, its own driver copy, a forward-compatibility copy and a toolkit stub."""
    path = tmp_path / "bundle"
    root = path / "rootfs"
    lib = root / "usr/lib/x86_64-linux-gnu"
    compat = root / "usr/local/cuda-13.0/compat"
    stubs = root / "usr/local/cuda-13.0/lib64/stubs"
    for directory in (lib, compat, stubs, root / "etc", root / "opt/own"):
        directory.mkdir(parents=True)
    (root / "lib").symlink_to("usr/lib")
    (lib / "libcuda.so.550.1").write_text("image's driver")
    (lib / "libcuda.so.1").symlink_to("libcuda.so.550.1")
    (lib / "libcuda.so").symlink_to("/usr/lib/x86_64-linux-gnu/libcuda.so.1")
    (lib / "libnvidia-ml.so.1").write_text("image's nvml")
    (compat / "libcuda.so.1").write_text("compat")
    (stubs / "libcuda.so").write_text("stub")
    (root / "opt/own/libcuda.so.1").write_text("found by LD_LIBRARY_PATH only")
    return path


def config(**more):
    return {
        "ociVersion": "1.0.2",
        "root": {"path": "rootfs", "readonly": True},
        "process": {
            "args": ["sh"],
            "env": ["PATH=/bin", "LD_LIBRARY_PATH=/opt/own:relative", "NVIDIA_VISIBLE_DEVICES=all"],
        },
        "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
        "annotations": {"gpushare.dev/memory": "8GiB", "gpushare.dev/time": "75%", "other": "kept"},
        "linux": {"resources": {"devices": [{"allow": False, "access": "rwm"}]}},
        **more,
    }


def edit(layout, node, bundle, wanted, devices=(GPU,)):
    return oci.edit(wanted, View(wanted, bundle), edits.container(layout, GRANT, node, devices), node.lib_dir)


def apply(layout, node, bundle, wanted):
    files = oci.Files(node.lib_dir, grantdir.preload_file(layout, GRANT), grantdir.cache_file(layout, GRANT))
    found = oci.apply(wanted, bundle, edits.container(layout, GRANT, node), files)
    return found.config, found.preload, found.cache


def mounted(edited) -> dict[str, str]:
    return {mount["destination"]: mount["source"] for mount in edited["mounts"]}


@pytest.mark.promise("cuda-only")
@pytest.mark.parametrize("kind", ["simulated", "real"])
def test_golden(layout, golden, bundle, request, kind):
    before = config()
    kept = copy.deepcopy(before)
    edited = edit(layout, request.getfixturevalue(kind), bundle, before)
    assert before == kept
    golden(f"oci-{kind}.json", edited)


@pytest.mark.parametrize("kind", ["simulated", "real"])
def test_twice_is_once(layout, bundle, request, kind):
    node = request.getfixturevalue(kind)
    once = edit(layout, node, bundle, config())
    assert edit(layout, node, bundle, once) == once


def test_twice_is_once_where_the_sources_exist(tmp_layout, bundle, tmp_path):
    """A second edit sees the interposer in place of the image's driver, and must change nothing."""
    lib = tmp_path / "lib"
    (lib / "sim").mkdir(parents=True)
    for name in ("libgpushare.so", "libgpushare-ml.so", "sim/libcuda.so.1"):
        (lib / name).write_text(name)
    node = Node(tmp_path / "sim", lib_dir=lib, sim_lib_dir=lib / "sim")
    grantfiles.create(tmp_layout, GRANT, "container", (0, 0), node, grantfiles.Pages(b"", b"", 0))
    once, lines, cache = apply(tmp_layout, node, bundle, config())
    assert cache is not None
    assert apply(tmp_layout, node, bundle, once) == (once, lines, cache)
    grantfiles.remove(tmp_layout, GRANT)


def test_every_driver_copy_gets_the_interposer(layout, simulated, bundle):
    lib = str(simulated.lib_dir)
    over = {
        k: v
        for k, v in mounted(edit(layout, simulated, bundle, config())).items()
        if v.startswith(f"{lib}/libgpushare") and not k.startswith("/run/gpushare/names/")
    }
    assert over == {
        "/opt/own/libcuda.so.1": f"{lib}/libgpushare.so",
        "/usr/lib/x86_64-linux-gnu/libcuda.so.550.1": f"{lib}/libgpushare.so",
        "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1": f"{lib}/libgpushare-ml.so",
        "/usr/local/cuda-13.0/compat/libcuda.so.1": f"{lib}/libgpushare.so",
    }


def test_driver_copy_that_another_tool_binds(layout, simulated, bundle, tmp_path):
    """As NVIDIA's own CDI spec does: the file is a bind mount, so no directory of the image has it."""
    driver = tmp_path / "libcuda.so.580.1"
    driver.write_text("host's driver")
    wanted = config(mounts=[{"destination": "/usr/lib64/libcuda.so.580.1", "type": "bind", "source": str(driver)}])
    found = edit(layout, simulated, bundle, wanted)["mounts"]
    sources = [m["source"] for m in found if m["destination"] == "/usr/lib64/libcuda.so.580.1"]
    assert sources == [str(driver), str(simulated.lib_dir / "libgpushare.so")]


def test_driver_in_a_bound_usr(layout, simulated, bundle, tmp_path):
    usr = tmp_path / "usr"
    (usr / "lib64").mkdir(parents=True)
    (usr / "lib64/libcuda.so.1").write_text("host's driver")
    wanted = config(mounts=[{"destination": "/usr", "type": "bind", "source": str(usr), "options": ["rbind", "ro"]}])
    assert mounted(edit(layout, simulated, bundle, wanted))["/usr/lib64/libcuda.so.1"].endswith("/libgpushare.so")


def test_nothing_is_made_in_what_the_host_lends(layout, simulated, bundle, tmp_path):
    """/etc is bound from the host and has no preload file: creating one there would preload into host programs."""
    etc = tmp_path / "etc"
    etc.mkdir()
    wanted = config(mounts=[{"destination": "/etc", "type": "bind", "source": str(etc)}])
    wanted["process"]["env"].append("LD_PRELOAD=/opt/theirs.so")
    edited = edit(layout, simulated, bundle, wanted)
    assert "/etc/ld.so.preload" not in mounted(edited)
    preload = f"LD_PRELOAD={':'.join(['/opt/theirs.so', *grantdir.preloaded(simulated)])}"
    assert preload in edited["process"]["env"]
    assert edit(layout, simulated, bundle, edited) == edited
    assert os.listdir(etc) == []


def test_tools_go_only_where_they_can(layout, real, bundle, tmp_path):
    """The host's own /usr: no file can be created there, and a container without nvidia-smi still starts."""
    assert mounted(edit(layout, real, bundle, config()))["/usr/bin/nvidia-smi"] == "/usr/bin/nvidia-smi"
    (tmp_path / "usr" / "bin").mkdir(parents=True)
    usr = {"destination": "/usr", "type": "bind", "source": str(tmp_path / "usr"), "options": ["rbind", "ro"]}
    assert "/usr/bin/nvidia-smi" not in mounted(edit(layout, real, bundle, config(mounts=[usr])))
    (tmp_path / "usr" / "bin" / "nvidia-smi").touch()
    assert "/usr/bin/nvidia-smi" in mounted(edit(layout, real, bundle, config(mounts=[usr])))


def test_a_volume_on_run_is_refused_only_where_nothing_can_be_made(layout, simulated, bundle, tmp_path):
    volume = {"destination": "/run", "type": "bind", "source": str(tmp_path), "options": ["rbind"]}
    assert "/run/gpushare/self" in mounted(edit(layout, simulated, bundle, config(mounts=[volume])))
    assert not (tmp_path / "gpushare").exists()
    volume["options"].append("ro")
    with pytest.raises(RefusedError, match="a tmpfs, or in Kubernetes an emptyDir, on /run"):
        edit(layout, simulated, bundle, config(mounts=[volume]))
    over = {"destination": "/run/gpushare", "type": "tmpfs", "source": "tmpfs"}
    assert "/run/gpushare/self" in mounted(edit(layout, simulated, bundle, config(mounts=[volume, over])))
    for name in ("self", "lib", "names"):
        (tmp_path / "gpushare" / name).mkdir(parents=True)
    assert "/run/gpushare/self" in mounted(edit(layout, simulated, bundle, config(mounts=[volume])))


def test_the_hosts_own_directory_is_refused(layout, simulated, bundle):
    """Programs of the host with a share would take it for that of a container, which goes before."""
    host = {"destination": "/var/run", "type": "bind", "source": "/var/run/../run", "options": ["rbind", "rslave"]}
    (bundle / "rootfs" / "run").symlink_to("/var/run")
    with pytest.raises(RefusedError, match="the host's own /run/gpushare"):
        edit(layout, simulated, bundle, config(mounts=[host]))
    over = {"destination": "/run/gpushare", "type": "tmpfs", "source": "tmpfs"}
    assert "/run/gpushare/self" in mounted(edit(layout, simulated, bundle, config(mounts=[host, over])))


@pytest.mark.promise("no-path-leads-out")
def test_symlinks_stay_inside_the_image(layout, simulated, bundle, tmp_path):
    """An absolute link in the image is relative to the image's root, never to the host's."""
    outside = tmp_path / "host/libcuda.so.1"
    outside.parent.mkdir()
    outside.write_text("host's")
    lib64 = bundle / "rootfs/usr/lib64"
    lib64.symlink_to(outside.parent)
    edited = edit(layout, simulated, bundle, config())
    assert not any("host" in destination for destination in mounted(edited))


def test_symlink_loops_end(layout, simulated, bundle):
    root = bundle / "rootfs"
    (root / "usr/lib64").symlink_to("lib64")
    (root / "etc/ld.so.preload").symlink_to("ld.so.preload")
    assert "/run/gpushare/self" in mounted(edit(layout, simulated, bundle, config()))


def test_keeps_what_the_image_preloads(tmp_layout, bundle, tmp_path):
    node = Node(tmp_path / "sim")
    theirs = b"# jemalloc\n/usr/lib/libtheirs.so:libbare.so.2\t/usr/$LIB/libtime.so # or\n/usr/lib/\xff.so\n\0/no.so\n"
    (bundle / "rootfs/etc/ld.so.preload").write_bytes(theirs)
    grantfiles.create(tmp_layout, GRANT, "container", (0, 0), node, grantfiles.Pages(b"", b"", 0))
    try:
        edited, lines, _ = apply(tmp_layout, node, bundle, config())
        grantfiles.write_preload(tmp_layout, GRANT, grantdir.preloaded(node), lines)
        assert apply(tmp_layout, node, bundle, edited)[:2] == (edited, lines)
        preload = grantdir.preload_file(tmp_layout, GRANT)
        assert mounted(edited)["/etc/ld.so.preload"] == str(preload)
        ours = [name.encode() for name in grantdir.preloaded(node)]
        kept = [b"/usr/lib/libtheirs.so", b"libbare.so.2", b"/usr/$LIB/libtime.so", b"/usr/lib/\xff.so"]
        assert preload.read_bytes().split() == [*kept, *ours]
    finally:
        grantfiles.remove(tmp_layout, GRANT)


@pytest.mark.promise("loader-cache-stays-inside")
def test_only_a_loader_cache_that_the_container_cannot_write_is_replaced(layout, simulated, bundle, tmp_path):
    place, etc = "/etc/ld.so.cache", {"destination": "/etc", "source": str(tmp_path), "type": "bind"}
    over = str(grantdir.cache_file(layout, GRANT))
    writable = {"root": {"path": "rootfs"}}
    nvidias = {"hooks": {"createContainer": [{"path": "/usr/bin/x", "args": ["nvidia-cdi-hook", "update-ldcache"]}]}}
    for changed, source in (({}, over), (writable, None), ({"mounts": [etc]}, None), (nvidias, None)):
        edited, _, cache = apply(layout, simulated, bundle, config(**changed))
        assert (mounted(edited).get(place), cache is not None) == (source, source is not None)
    image = bundle / "rootfs" / "etc/ld.so.cache"
    for make in (lambda: image.symlink_to("/etc/passwd"), image.mkdir, lambda: image.write_bytes(bytes(2 << 20))):
        make()
        edited, _, cache = apply(layout, simulated, bundle, config())
        assert (place in mounted(edited), cache) == (False, None)
        image.rmdir() if image.is_dir() else image.unlink()


def test_config_with_nearly_nothing_in_it(layout, real, tmp_path):
    edited = edit(layout, real, tmp_path, {"root": {"path": "/none"}, "process": {"args": ["x"]}, "mounts": None})
    assert "/run/gpushare/self" in mounted(edited)
    assert [rule["major"] for rule in edited["linux"]["resources"]["devices"]] == [195, 511, 195]


@pytest.mark.parametrize(
    ("annotations", "wanted"),
    [
        (None, None),
        ({}, None),
        ({"example.dev/memory": "1"}, None),
        (
            {"gpushare.dev/memory": "1GiB", "gpushare.dev/time": "0.5"},
            {"memory": "1GiB", "time": "0.5", "ttl_seconds": 20},
        ),
        (
            {
                f"gpushare.dev/{name}": "x"
                for name in ("memory", "time", "time-limit", "tenant", "class", "device", "managed", "gang")
            },
            dict.fromkeys(("memory", "time", "time_limit", "tenant", "class", "device", "managed", "gang"), "x")
            | {"ttl_seconds": 20},
        ),
        (
            {
                "gpushare.dev/memory": "1GiB",
                "gpushare.dev/time": "0",
                "gpushare.dev/borrow-memory": "100%",
                "gpushare.dev/reclaim": "kill",
                "gpushare.dev/grace": "30",
                "gpushare.dev/eviction-signal": "USR1",
                "gpushare.dev/priority": "-2",
            },
            {
                "memory": "1GiB",
                "time": "0",
                "borrow_memory": "100%",
                "max_rung": "kill",
                "grace_seconds": 30,
                "eviction_signal": "USR1",
                "priority": -2,
                "ttl_seconds": 20,
            },
        ),
        (
            {
                "gpushare.dev/memory": "1GiB",
                "gpushare.dev/time": "10%",
                "gpushare.dev/idle-memory": "lend",
                "gpushare.dev/idle-after": "5m",
            },
            {
                "memory": "1GiB",
                "time": "10%",
                "idle_memory": "lend",
                "idle_after_seconds": 300,
                "ttl_seconds": 20,
            },
        ),
        ({"gpushare.dev/grant": "g-1", "gpushare.dev/memory": "1GiB"}, {"grant": "g-1"}),
        (  # in Kubernetes, where 4G is decimal
            {"gpushare.dev/memory": "4G", "gpushare.dev/time": "50%", "io.kubernetes.cri.container-name": "main"},
            {"memory": "4000000000", "time": "50%", "ttl_seconds": 20},
        ),
    ],
)
def test_request(annotations, wanted):
    assert oci.request({"annotations": annotations}) == wanted


@pytest.mark.promise("numbers-parse-fast")
@pytest.mark.parametrize(
    "annotations",
    [
        {"memory": "1"},
        {"time": "1"},
        {"memory": "1", "time": "1", "colour": "red"},
        {"memory": "1", "time": "1", "idle-after": "soon"},
        {"memory": "1", "time": "9" * 1025},
    ],
)
def test_request_that_makes_no_sense(annotations):
    with pytest.raises(UsageError, match=r"gpushare\.dev/"):
        oci.request({"annotations": {f"gpushare.dev/{name}": value for name, value in annotations.items()}})


@pytest.mark.parametrize("name", ["GPUSHARE.DEV/memory", "Gpushare.dev/grant", "gpushare.dev/Memory"])
def test_a_request_in_capitals_is_refused(name):
    asked = {"gpushare.dev/memory": "1GiB", "gpushare.dev/time": "10%", name: "1GiB"}
    with pytest.raises(UsageError, match=rf"annotation {name} is unknown.*small letters"):
        oci.request({"annotations": asked})


def test_edited_config_asks_for_its_own_grant(layout, simulated, bundle):
    assert oci.request(edit(layout, simulated, bundle, config())) == {"grant": GRANT}


def test_bundle_may_be_gone(layout, simulated, bundle):
    shutil.rmtree(bundle)
    assert "/run/gpushare/self" in mounted(edit(layout, simulated, bundle, config()))


@pytest.mark.parametrize("name", ["io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType"])
def test_the_sandbox_of_a_pod_asks_for_nothing(name):
    pods = {"gpushare.dev/memory": "1GiB", "gpushare.dev/time": "30%"}
    assert oci.request({"annotations": {**pods, name: "sandbox"}}) is None
    assert oci.request({"annotations": {**pods, name: "container"}})["memory"] == "1GiB"


def by_environment(*variables, **more):
    return oci.request_by_environment({"process": {"env": ["PATH=/bin", *variables]}, **more})


def test_a_request_by_the_environment():
    size = ("GPUSHARE_MEMORY=4GiB", "GPUSHARE_TIME=25%")
    assert by_environment() is None
    assert by_environment("GPUSHARE_DEBUG=all", "GPUSHARE_EVICTION_SIGNAL=USR1", "gpushare_memory=1") is None
    assert by_environment(*size) == {"memory": "4GiB", "time": "25%", "ttl_seconds": 20}
    more = by_environment(*size, *size, "GPUSHARE_TIME_LIMIT=50%", "GPUSHARE_CLASS=interactive")
    assert more == {
        "memory": "4GiB", "time": "25%", "time_limit": "50%", "class": "interactive", "ttl_seconds": 20,
    }  # fmt: skip
    assert by_environment(*size, annotations={"io.kubernetes.cri.container-type": "sandbox"}) is None
    assert oci.request({"process": {"env": list(size)}}) is None


@pytest.mark.promise("image-asks-nothing")
@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (["GPUSHARE_MEMORY=1GiB"], "GPUSHARE_TIME is missing"),
        (["GPUSHARE_CLASS=training"], "GPUSHARE_MEMORY is missing"),
        (["GPUSHARE_MEMORY=1GiB", "GPUSHARE_MEMORY=8GiB", "GPUSHARE_TIME=1%"], "GPUSHARE_MEMORY is set twice"),
        (["GPUSHARE_MEMORY=1GiB", f"GPUSHARE_TIME={'1' * 1025}"], "1025 characters"),
        *(
            (["GPUSHARE_MEMORY=1GiB", "GPUSHARE_TIME=1%", f"{name}=x"], rf"{name} is not read, since an image can set")
            for name in ("GPUSHARE_TENANT", "GPUSHARE_GRANT", "GPUSHARE_PRIORITY", "GPUSHARE_BORROW_MEMORY")
        ),
    ],
)
def test_what_the_environment_cannot_ask(variables, message):
    with pytest.raises(UsageError, match=message):
        by_environment(*variables)
