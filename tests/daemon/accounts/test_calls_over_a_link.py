"""Synchronising calls of real programs, and bytes that they copy, as the node API shows them."""

from run.waiting import until


def test_calls_and_bytes_of_a_grant_are_counted_over_restarts_and_its_end(attentive):
    client = attentive.client
    program = attentive.spin("1GiB", "25%")
    [grant] = [one["id"] for one in client.grants()]

    def seen():
        found = client.grant(grant)
        return found["sync_calls"], found["host_bytes_in"], found["host_bytes_out"]

    def calls(number, what):
        until(lambda: seen()[0] >= number, f"{what} is counted", 20)
        assert seen()[0] == number

    calls(3, "a context, a module and its function")
    program.tell("memory")
    program.tell("alloc 1MiB")
    calls(5, "what memory is free, and an allocation")
    program.tell("sum")  # a module, two functions, memory for the sum, a wait, and a copy of eight bytes
    calls(11, "a sum")
    assert seen() == (11, 0, 8)
    program.tell("sum")
    program.tell("memory")
    attentive.kill()
    program.tell("sum")
    attentive.start()
    calls(16, "what was done without a daemon")
    assert seen() == (16, 0, 24)
    assert client.grant(grant)["running_ns"] > 0
    program.tell("memory")
    program.close()  # and is read no more while it lives
    until(lambda: not client.grants(), "it has ended", 20)
    assert seen() == (17, 0, 24)


def test_kernels_are_no_synchronising_calls(attentive):
    client = attentive.client
    program = attentive.spin("1GiB", "25%")
    [grant] = [one["id"] for one in client.grants()]
    program.tell("run 1000000")
    until(lambda: client.grant(grant)["devices"][0]["busy_ns"] > 2e8, "it has run for a time", 20)
    program.tell("idle")
    until(lambda: client.sim_stats() and not client.grant(grant)["devices"][0]["waiting"], "it has stopped", 20)
    found = client.grant(grant)
    kernels = found["devices"][0]["busy_ns"] // 1_000_000
    assert found["sync_calls"] < 20 + kernels / 2, "an event for each four kernels is waited for"
    program.close()
