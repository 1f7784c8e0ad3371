"""A pod made through containerd's CRI, as by the kubelet, gets its share after `gpushare runtime configure` alone."""

import subprocess

import grpc
import pytest
from engines.cri import Cri, configuration, empty_dir, image_archive, message
from engines.installed import SHARE, SPIN, allocated, configure, each, running
from machine import cgroups

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("machine")]


@each("containerd")
def test_a_pod_gets_a_share(program, node, wrapper, rootfs, short_path, capfd):
    version = subprocess.run([program, "--version"], capture_output=True, text=True).stdout.split()[2]
    knows_cdi = not version.lstrip("v").startswith("1.6")
    config, work = short_path / "config.toml", short_path / "work"
    since_2 = version.lstrip("v").startswith("2")
    before = configuration(work, since_2, f'cdi_spec_dirs = ["{node.layout.cdi}"]' if knows_cdi else "")
    config.write_text(before)
    work.mkdir()
    image_archive(rootfs, short_path / "image.tar")
    configure("containerd", config, program, "--runtime-path", str(wrapper))
    ctr = [program.parent / "ctr", "--address", work / "sock", "--namespace", "k8s.io"]

    def ready() -> bool:
        return subprocess.run([*ctr, "version"], capture_output=True).returncode == 0

    with running(program, "--config", config, ready=ready, log=short_path / "log", path=program):
        given = [*ctr, "images", "import", *(["--local"] if since_2 else []), "--snapshotter", "native"]
        done = subprocess.run([*given, short_path / "image.tar"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        with grpc.insecure_channel(f"unix://{work}/sock") as channel:
            cri = Cri(channel, work / "pods")
            with cri.pod("gpushare", SHARE) as pod:
                assert allocated(cri.run(pod, *SPIN))
                # Of the pod's containers and its sandbox, only this one had a share.
                assert len(node.client.grants(ended=True)) == 1
                for where in ("/run", "/run/gpushare"):
                    assert allocated(cri.run(pod, *SPIN, **empty_dir(where, short_path)))
            # Its name in the pod is "container".
            with cri.pod("gpushare", {"nvidia.com/container.container.gpu-memory.limit": "1Gi"}) as pod:
                assert allocated(cri.run(pod, *SPIN))
            bad = {"nvidia.com/container.container.gpu-memory.limit": "much"}
            with (
                cri.pod("gpushare", bad) as pod,
                pytest.raises(grpc.RpcError, match=r"container\.gpu-memory\.limit is 'much', not"),
            ):
                cri.run(pod, *SPIN)
            if knows_cdi:
                grant = node.client.create(memory="1GiB", time="30%")
                with cri.pod("", {}) as pod:
                    named = [message(_1=name) for name in grant["cdi"]]
                    assert allocated(cri.run(pod, *SPIN, _17=named, **empty_dir("/run", short_path)))
            for handler in ("gpushare", ""):
                with cri.pod(handler, {}) as pod:
                    assert cri.run(pod, "/bin/sh", "-c", "test ! -e /run/gpushare && echo none") == "none"
    configure("containerd", config, program, verb="unconfigure")
    assert config.read_text() == before
    cgroups.remove()
