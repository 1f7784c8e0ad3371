"""A grant's entitlement: while it has work, its guarantee and its part of what others leave."""

from contextlib import ExitStack

from run.waiting import until


def entitled(daemon):
    """Entitlements in per mille, by requested time."""
    found = [device for grant in daemon.client.grants() for device in grant["devices"]]
    return {device["time_milli"]: device["entitled_milli"] for device in found}


def test_it_follows_who_works(attentive):
    daemon = attentive
    with ExitStack() as held:
        more, less, idle = (daemon.spin("1GiB", share, gpu="0") for share in ("60%", "20%", "10%"))
        for tenant in more, less, idle:
            held.callback(tenant.kill)
        more.tell("run 500000")
        less.tell("run 500000")
        # All belong to one tenant: by their times, two split the idle third's part and the ungranted rest.
        until(lambda: entitled(daemon) == {600: 750, 200: 250, 100: 0})
        more.tell("idle")
        until(lambda: entitled(daemon) == {600: 0, 200: 1000, 100: 0})
        daemon.client.set_sim_lost(0, lost=True)
        until(lambda: entitled(daemon) == {600: 0, 200: 0, 100: 0})
