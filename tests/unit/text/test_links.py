"""Attachments and their links in words."""

import pytest
from views.tops import attachment

from gpushare.text import links

SECOND = 10**9


@pytest.mark.parametrize(
    ("rtt_us", "rate_bps", "checked", "told"),
    [
        (85, 1_200_000_000, "good", "85us 1.2G"),
        (85, 0, "", "85us"),
        (999, 850_000_000, "fair", "999us 850M"),
        (1100, 12_000, "poor", "1.1ms 12k poor"),
        (0, 999, "", ""),
        (0, 64_000_000_000, "refused", "64G refused"),
    ],
)
def test_a_link_fits_a_cell(rtt_us, rate_bps, checked, told):
    assert links.brief([attachment(rtt_us=rtt_us, rate_bps=rate_bps, checked=checked)]) == told


def test_of_several_the_worst_counts_and_rates_add_up():
    several = [attachment("a", 85, 10**9), attachment("b", 300, 10**9, "fair"), attachment("b", 20, 0, "")]
    assert (links.brief(several), links.hosts(several), links.worst(several)) == ("300us 2G", "2 hosts", "fair")
    assert (links.hosts(several[1:]), links.hosts([]), links.worst([]), links.brief([])) == ("b", "", "", "")


def test_a_machine_without_a_name_is_its_address():
    assert links.host(attachment("")) == links.origin(attachment("")) == "192.0.2.7"
    assert links.host(attachment("", address="")) == "?"
    assert links.origin(attachment("lab2")) == "lab2 (192.0.2.7)"


def test_what_happens_to_an_attachment_in_words():
    one = attachment(rate_bps=1_200_000_000)
    assert links.living(one) == (
        "from lab2 (192.0.2.7), over example, TLS: round trip 85 us, 1.2 Gbit/s now, good when it was checked, "
        "3MiB in, 0B out"
    )
    assert links.attached(one) == "attached from lab2 (192.0.2.7), over example, TLS"
    over = {**one, "ended_ns": one["created_ns"] + 90 * SECOND, "ending": "lost"}
    assert links.detached(over) == (
        "detached from lab2 after 90.0s, nothing was heard of the client for too long: 3MiB in, 0B out"
    )
    assert links.living(attachment(rtt_us=0, checked="", link={"kind": "plain", "rtt_us": 0, "checked": ""})) == (
        "from lab2 (192.0.2.7), over example, unencrypted: 3MiB in, 0B out"
    )
