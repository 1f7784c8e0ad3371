"""Shares while programs run: entitlements follow which grants have work, and configuration changes. The simulator is
the reference."""

import signal

import pytest
from run.running import Tenant
from run.waiting import until

from gpushare.errors import RefusedError

# tests/model shows the shares to a tenth of a point in virtual time. Here, one case of each kind of change shows that
# the daemon follows it, within a tolerance for a busy machine.
ROUGH = {"window_ns": 600_000_000, "within": 80}
EXACT = {"window_ns": 3_000_000_000, "within": 30}

pytestmark = pytest.mark.xdist_group("timing")


@pytest.fixture
def spin(daemon):
    running: list[Tenant] = []

    def start(share: str, *, work: bool = True, **options: str) -> Tenant:
        running.append(daemon.spin("1GiB", share, gpu="0", **options))
        if work:
            running[-1].tell("run 500000")
        return running[-1]

    yield start
    for tenant in running:
        tenant.kill()


@pytest.fixture
def split(daemon):
    """Waits until each tenant gets the expected per mille of the device's work over a whole window."""

    def measure(tenants, window_ns):
        first = daemon.busy(*(tenant.pid for tenant in tenants))
        until(lambda: sum(daemon.busy(*(t.pid for t in tenants))) - sum(first) > window_ns, "a window of work", 60)
        got = [after - at for at, after in zip(first, daemon.busy(*(t.pid for t in tenants)), strict=True)]
        return [round(1000 * one / sum(got)) for one in got]

    def check(tenants, wanted, *, window_ns=EXACT["window_ns"], within=EXACT["within"]):
        seen = []

        def right():
            seen.append(measure(tenants, window_ns))
            return all(abs(got - one) <= within for got, one in zip(seen[-1], wanted, strict=True))

        until(right, seen, 60)

    return check


@pytest.mark.parametrize("grade", [ROUGH, pytest.param(EXACT, marks=pytest.mark.slow)], ids=["rough", "exact"])
def test_what_a_tenants_idle_grant_leaves_is_its_others(client, spin, split, grade):
    client.set_tenant("a", {"time": 400})
    client.set_tenant("b", {"time": 600})
    client.set_tenant("rest", {"time": 1000})
    one, idle, other = spin("20%", tenant="a"), spin("20%", work=False, tenant="a"), spin("60%", tenant="b")
    # By weights alone: 267 and 733.
    split([one, idle, other], [400, 0, 600], **grade)
    idle.tell("run 500000")
    split([one, idle, other], [200, 200, 600], **grade)
    one.tell("idle")
    split([one, idle, other], [0, 400, 600], **grade)


@pytest.mark.slow
def test_what_a_child_leaves_is_its_siblings(client, spin, split):
    """By weight alone it would be 60 to 40."""
    client.set_tenant("ml", {"time": 750})
    client.set_tenant("ml/a", {"time": 300})
    client.set_tenant("ml/b", {"time": 450})
    client.set_tenant("sales", {"time": 250})
    idle = spin("300m", work=False, tenant="ml/a")
    both = [spin("450m", tenant="ml/b"), spin("250m", tenant="sales")]
    split(both, [750, 250], **ROUGH)
    idle.tell("run 500000")
    split([idle, *both], [300, 450, 250], **ROUGH)


@pytest.mark.slow
def test_a_tenants_weight_is_with_the_grants_that_run(client, spin, split):
    client.set_tenant("rest", {"time": 2000})
    client.set_tenant("a", {"weight": 1})
    client.set_tenant("b", {"weight": 1})
    one, idle, other = spin("20%", tenant="a"), spin("60%", work=False, tenant="a"), spin("20%", tenant="b")
    split([one, idle, other], [500, 0, 500])
    idle.tell("run 500000")
    split([one, idle, other], [125, 375, 500])


@pytest.mark.slow
def test_the_largest_weights_are_served_too(client, spin, split):
    client.set_tenant("rest", {"time": 2000})
    client.set_tenant("a", {"weight": 1_000_000})
    client.set_tenant("b", {"weight": 333_333})
    split([spin("50%", tenant="a"), spin("50%", tenant="b")], [750, 250])


@pytest.mark.slow
def test_a_resize_while_leases_are_out(client, spin, split):
    first, second = spin("25%"), spin("75%")
    split([first, second], [250, 750])
    small, large = sorted(client.grants(), key=lambda grant: grant["devices"][0]["time_milli"])
    with pytest.raises(RefusedError, match="75% of time does not fit"):
        client.resize(small["id"], time="75%")
    client.resize(large["id"], time="25%")
    client.resize(small["id"], time="75%")
    split([first, second], [750, 250])


@pytest.mark.slow
def test_what_was_borrowed_lately_counts_where_the_node_is_configured_so(make_daemon, tmp_path):
    config = tmp_path / "gpushare.toml"
    config.write_text(
        'simulate = "1x4GiB"\nledger_seconds = 1\n[policy]\nusage_factor = 1\nusage_half_life_seconds = 600\n'
    )
    daemon = make_daemon("--config", str(config)).start()
    for name in "ab":
        daemon.client.set_tenant(name, {"weight": 2})
    borrower, other = (daemon.spin("1GiB", "0%", gpu="0", tenant=name) for name in "ab")

    def now(name):
        return next(tenant for tenant in daemon.client.tenants() if tenant["name"] == name)["now"]

    borrower.tell("run 500000")
    # Weights are corrected among siblings of one tier; `default`, of weight 1, is one of them.
    until(lambda: (now("a")["weight"], now("b")["weight"]) == (0, 4), "the correction of weights", 20)
    # Long enough that the other cannot catch up before the next check.
    until(lambda: now("a")["usage_milli_seconds"] > 4000, "a long loan", 30)
    assert now("b")["usage_milli_seconds"] == 0
    row = next(line for line in daemon.cli("tenants", "list").stdout.splitlines() if line.startswith("b "))
    assert " 2 (4) " in row
    other.tell("run 500000")
    until(lambda: now("b")["used_milli"] > 700 > 200 > now("a")["used_milli"], "more for who comes", 20)
    borrower.kill()
    other.kill()
    until(lambda: not daemon.client.grants(), "the end of both", 20)
    daemon.kill()
    daemon.start()
    until(lambda: now("a")["usage_milli_seconds"] > 500, "what the ledger has of it", 20)


@pytest.mark.parametrize("shares", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_tenants_file_that_is_read_again_while_leases_are_out(daemon, client, spin, split, shares):
    for name, time in (("a", 250), ("b", 750), ("rest", 1000)):
        client.set_tenant(name, {"time": time})
    first, second = spin("25%", tenant="a"), spin("75%", tenant="b")
    if shares:
        split([first, second], [250, 750])
    rv = client.call("GET", "/v1/tenants")["rv"]
    file = daemon.state_dir / "tenants.toml"
    lines = {"a": 600, "b": 400, "rest": 1000}
    file.write_text("".join(f"[tenants.{name}]\ntime = '{time}m'\n" for name, time in lines.items()))
    daemon.process.send_signal(signal.SIGHUP)
    events = client.watch(since=rv, timeout=20)
    notified = [next(events), next(events), next(events)][1:]
    assert [(e["object"]["name"], e["object"]["guarantee"]["time"]) for e in notified] == [("a", 600), ("b", 400)]
    # b reserved 750 of its former guarantee, which is now 400.
    if shares:
        split([first, second], [600, 400])

    file.write_text("[tenants.a]\ntime = '600m'\n[tenants.c]\ntime = '3m'\n")
    daemon.process.send_signal(signal.SIGHUP)
    until(lambda: "the tenants stay as they were" in daemon.log.read_text(), "the refusal is in the log", 20)
    assert "0.3% is too small to be served: give 0.5% or more" in daemon.log.read_text()
    assert [tenant["name"] for tenant in client.tenants()] == ["default", "a", "b", "rest"]
    file.unlink()
