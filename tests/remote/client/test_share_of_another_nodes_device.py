"""A program here has its share of a device there, no more: memory and time, judged by that device's books."""

import json
import shutil
import subprocess
import time

import pytest
from links.slowlink import SlowLink
from remote import carrier
from run import running
from run.running import SPIN, Tenant
from run.waiting import until

GIB = 1 << 30
ANY_LINK = ("--link-min", "any")


@pytest.fixture
def node(elsewhere):
    yield elsewhere.node
    until(lambda: not elsewhere.node.client.grants(), "the grants end", 30)
    until(lambda: not any(device["bytes"] for device in elsewhere.node.client.sim_stats()["devices"]), "memory is back")


class Remote(Tenant):
    """gpushare-spin here, over the carrier. `grant`: its grant there."""

    def __init__(self, elsewhere, memory, share, *options, name=""):
        before = {grant["id"] for grant in elsewhere.node.client.grants()}
        target = name or f"unix:{elsewhere.node.layout.socket}"
        asked = ("--memory", memory, "--time", share, "--gpu", "0")
        words = [*running.GPUSHARE, "run", "--remote", target, *asked, *ANY_LINK, *options, "--", str(SPIN)]
        super().__init__(words, elsewhere.env)
        [self.grant] = {grant["id"] for grant in elsewhere.node.client.grants()} - before

    def served_by(self, node):
        """The pid of the process that uses the device for it."""
        [pid] = [row["pid"] for row in node.books()["processes"] if row["alive"] and row["pid"] in _pids(node, self)]
        return pid


def _pids(node, tenant):
    return node.client.call("GET", f"/v1/grants/{tenant.grant}")["processes"]


def test_it_sees_and_gets_the_memory_of_its_share(elsewhere, node):
    tenant = Remote(elsewhere, "4GiB", "10%")
    try:
        memory = tenant.tell("memory")
        assert memory["total_bytes"] == 4 * GIB
        assert tenant.tell("alloc 6GiB")["name"] == "CUDA_ERROR_OUT_OF_MEMORY"
        assert tenant.tell("alloc 64MiB")["ok"]
        tenant.tell("touch 255")
        assert tenant.tell("sum")["sum"] == 255 * (64 << 20) // 8
        assert tenant.tell("alloc 3GiB")["ok"]
        assert tenant.tell("alloc 3GiB")["name"] == "CUDA_ERROR_OUT_OF_MEMORY"
        assert 3 * GIB <= node.books()["bytes"] <= 4 * GIB
        assert tenant.tell("free")["held_bytes"] == 0
        assert node.books()["bytes"] < GIB
    finally:
        tenant.close()


def test_programs_of_one_attachment_share_its_memory(elsewhere, node):
    words = [*running.GPUSHARE, "remote", "attach", "--memory", "4GiB", "--time", "10%", *ANY_LINK, "--json"]
    words.append(f"unix:{node.layout.socket}")
    with subprocess.Popen(words, env=elsewhere.env, stdout=subprocess.PIPE, text=True) as attach:
        try:
            assert attach.stdout is not None
            env = {**elsewhere.env, **json.loads(attach.stdout.readline())["env"]}
            one, other = Tenant([str(SPIN)], env), Tenant([str(SPIN)], env)
            assert one.tell("alloc 3GiB")["ok"]
            assert not other.tell("alloc 3GiB")["ok"]
            one.kill()
            until(lambda: other.tell("alloc 3GiB")["ok"], "the memory of the one that was killed")
            other.close()
        finally:
            attach.terminate()
            attach.wait(30)


def test_another_version_of_the_carrier_is_refused_with_both(elsewhere, node, tmp_path):
    there = carrier.version()
    libraries = tmp_path / "carrier"
    shutil.copytree(carrier.client(), libraries)
    (libraries / "VERSION").write_text("tests' carrier 1\n")
    carriers = elsewhere.home / ".config/gpushare/carriers"
    before = (carriers / f"{carrier.NAME}.toml").read_text()
    carrier.contract(carriers, client={"dir": str(libraries)})
    try:
        words = ("run", "--remote", f"unix:{node.layout.socket}", "--memory", "1GiB", "--time", "1%", "--", "true")
        done = elsewhere.cli(*words)
    finally:
        (carriers / f"{carrier.NAME}.toml").write_text(before)
    assert done.returncode == 3
    assert repr(there) in done.stderr
    assert repr("tests' carrier 1") in done.stderr


@pytest.mark.slow
@pytest.mark.timing
def test_time_is_shared_as_asked_wherever_programs_run(elsewhere, node):
    """Two of another machine, and one of the node."""
    far = [Remote(elsewhere, "1GiB", share) for share in ("50%", "25%")]
    near = Tenant(node.run("1GiB", "25%", SPIN, gpu="0"), node.env)
    try:
        for tenant in (*far, near):
            tenant.tell("run 20000000")  # long ones: a program that waits its turn here is not one that wants less
        pids = [*(tenant.served_by(node) for tenant in far), near.pid]
        node.shares(2, *pids)  # until all have begun
        got = node.shares(8, *pids)
        assert got == pytest.approx([500, 250, 250], abs=30), got
        far[0].tell("idle")
        assert node.shares(4, *pids)[0] < 30, "what one leaves is the others'"
    finally:
        for tenant in (*far, near):
            tenant.close()


@pytest.mark.slow
def test_a_program_whose_link_is_cut_sees_what_the_contract_says(elsewhere, node):
    with SlowLink(elsewhere.relay) as link:
        host, port = link.address
        elsewhere.write(f'[nodes.cut]\ntarget = "unix:{node.layout.socket}"\nrelay = "{host}:{port}"\n')
        tenant = Remote(elsewhere, "1GiB", "10%", name="cut")
        tenant.tell("alloc 512MiB")
        tenant.tell("run 1000000")
        link.cut()
        began = time.monotonic()
        until(lambda: not node.client.grants(), "it is noticed", 40)
        assert time.monotonic() - began > 5, "a short silence is none"
        out, err = tenant.process.communicate(timeout=40)
        assert carrier.LOST in out
        assert f"is gone: nothing was heard over it for too long: programs see {carrier.LOST}" in err
