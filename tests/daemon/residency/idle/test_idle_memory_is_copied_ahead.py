"""Memory of a program that does nothing is copied to the host before anybody wants it; giving it up then copies
nothing."""

import pytest
from run.running import Daemon
from run.waiting import until

MIB = 1 << 20


@pytest.fixture
def node(tmp_path):
    (tmp_path / "gpushare.toml").write_text('[memory]\nhost_pool = "1GiB"\nidle_after_seconds = 0.2\n')
    made = Daemon(tmp_path / "node", options=("--config", str(tmp_path / "gpushare.toml"))).start()
    yield made
    made.stop()


def test_an_idle_program_is_copied_ahead(node):
    program = node.spin("1GiB", "50%", idle_memory="lend")
    try:
        [grant] = node.client.grants()

        def device():
            return node.client.grant(grant["id"])["devices"][0]

        program.tell("alloc 64MiB")
        before = program.tell("touch 5") and program.tell("sum")["sum"]
        until(lambda: device()["memory_clean_bytes"] == 64 * MIB, "it is copied ahead")
        assert device()["memory_bytes"] > 64 * MIB
        assert node.client.node()["host_pool"]["used"] == 64 * MIB
        program.tell("touch 3")
        assert device()["memory_clean_bytes"] == 0, "what has changed is not current"
        until(lambda: device()["memory_clean_bytes"] == 64 * MIB, "it is copied again")
        assert node.cli("grant", "suspend", grant["id"], "--wait=30").returncode == 0
        assert device()["memory_hosted_bytes"] == 64 * MIB
        program.tell("touch 3")
        assert program.tell("sum")["sum"] == before
        program.tell("free")
        until(lambda: node.client.node()["host_pool"]["used"] == 0, "what has nothing to move has no copy")
    finally:
        program.close()


def test_a_copy_goes_with_the_processes_that_had_it(node):
    kept = node.client.create(memory=1 << 30, time=50, device=0, idle_memory="lend", keep=True)["id"]
    program = node.spin("1GiB", "50%", grant=kept)
    program.tell("alloc 64MiB")
    until(lambda: node.client.node()["host_pool"]["used"] == 64 * MIB, "it is copied ahead")
    program.close()
    until(lambda: node.client.node()["host_pool"]["reserved"] == 0, "nothing is reserved for it")
    assert node.client.grant(kept)["phase"] == "bound"
    node.client.release(kept)
