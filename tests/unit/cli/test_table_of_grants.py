"""`gpushare ps`: which columns a terminal of some width gets, in which order grants come, and what a pipe gets."""

import pytest
from views.tops import GIB, attachment, grant

from gpushare.cli.look import columns, grants
from gpushare.errors import UsageError

DIM = "\x1b[2m"


def workload(program="", container="", pod=None):
    return {"program": program, "container": container, "pod": pod and {"namespace": "ml", "name": pod}}


PYTHON = workload("/usr/bin/python3 train.py --epochs 90 --out /data/runs/2026-11-29/a-very-long-name")
MANY = [
    grant(
        f"g-{number:012x}",
        at=number % 4,
        tenant=f"research/group-{number % 7}",
        phase=("active", "suspended")[number % 9 == 8],
        notice="" if number % 2 else f"its device does not work, number {number}",
        used_milli=number * 10,
        waited_milli=number,
        borrowed_milli=5,
        extra_milli=125,
        memory_bytes=GIB + number,
        workload=workload("字" * 200) if number % 2 else PYTHON,
        residency={"since_ns": 0, "wanted": False},
    )
    for number in range(50)
]


@pytest.fixture
def shown(monkeypatch, capsys):
    """Calls `show` as on a terminal of `width` columns, None: into a pipe; returns the lines."""

    def call(found, chosen=None, width=None, **environment):
        for name in ("NO_COLOR", "COLUMNS"):
            monkeypatch.delenv(name, raising=False)
        size = {} if width is None else {"COLUMNS": str(width)}
        for name, value in {"TERM": "xterm", **size, **environment}.items():
            monkeypatch.setenv(name, value)
        capsys.readouterr()
        monkeypatch.setattr("sys.stdout.isatty", lambda: width is not None)
        grants.show(grants.ordered(found), chosen)
        return capsys.readouterr().out.splitlines()

    return call


@pytest.mark.parametrize("width", [1, 17, 40, 80, 100, 132, 300])
def test_fifty_grants_fit(shown, width):
    table, below = shown(MANY, width=width)[:51], shown(MANY, width=width)[51:]
    lines = [line.removeprefix(DIM).removesuffix("\x1b[0m") for line in table]
    assert max(map(grants.width_of, lines)) <= width
    assert len(below) == 5 and below[-1] == "and 21 more: `gpushare why`"
    if width >= 40:
        assert lines[0].split()[0] == "GRANT" and lines[1].split()[0] == MANY[49]["id"], "who got most comes first"
    titles = lines[0].split()
    if width >= 80:
        assert titles[-1] == "PROGRAM" and {"GUARANTEED", "EXTRA", "GOT", "MEMORY", "WHO"} <= {*titles}


def test_what_says_nothing_is_left_out_on_a_terminal_only(shown):
    plain = grant("g-1", workload=workload("/bin/sh -c 'sleep 1'"))
    assert shown([plain], width=80)[0].split() == [
        "GRANT",
        "GUARANTEED",
        "GOT",
        "MEMORY",
        "LIMIT",
        "AGE",
        "WHO",
        "PROGRAM",
    ]
    assert shown([plain])[0].split() == [columns.BY_NAME[name].title for name in columns.DEFAULT]
    assert shown(MANY)[1].endswith("字" * 200), "a pipe gets all of it"
    assert shown([]) == ["no grants"]


def test_who_is_the_pod_or_the_container_or_the_user(shown):
    runs = {"uid": 0}, {"workload": workload(container="0123456789abcdef" * 4)}, {"workload": workload(container="web")}
    found = [grant(f"g-{at}", **one) for at, one in enumerate(runs)]
    found += [grant("g-9", workload=workload(container="f" * 64, pod="train-0")), grant("h-0", uid=4294967)]
    lines = shown(found, columns.parse("who"))
    assert lines == ["WHO", "root", "0123456789ab", "web", "ml/train-0", "4294967"]


def test_what_was_asked_for_and_what_comes_on_top_are_two_numbers(shown, capsys):
    one = grant("g-1", time_milli=50, guaranteed_milli=50, extra_milli=950, served_milli=1000, used_milli=999)
    none = grant("g-2", time_milli=500, guaranteed_milli=0, served_milli=0, waited_milli=900, used_milli=1)
    ended = grant("g-3", phase="released", reason="its processes have ended")
    lines = shown([ended, none, one], columns.parse("grant,asked,guaranteed,extra,got,reason"))
    assert [line.split(maxsplit=5) for line in lines[1:4]] == [
        ["g-1", "5%", "5%", "+95%", "99.9%", "-"],
        ["g-2", "50%", "0%", "-", "0.1%", "-"],
        ["g-3", "25%", "-", "-", "-", "its processes have ended"],
    ]
    waits = "g-2: waited 90% of the last second for device 0: it is guaranteed nothing there"
    had = "g-1 of default got 99.9% (guaranteed 5% and 95% extra)"
    notice = f"{waits} and gets what others leave idle; {had}: `gpushare why g-2` says what to do"
    assert lines[4:] == [notice]
    grants.show([none], columns.parse("grant"), others=[one, none])  # as `ps --tenant` does
    assert capsys.readouterr().out.splitlines()[2:] == [notice]


@pytest.mark.parametrize(("environment", "dims"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_idle_rows_are_dimmed_where_colour_is_allowed(shown, environment, dims):
    found = [grant("g-1"), grant("g-2", used_milli=1), grant("g-3", waiting=True), grant("g-4", phase="failed")]
    lines = shown(found, width=80, **environment)
    assert [line.startswith(DIM) for line in lines] == [False, False, dims, False, dims]
    assert "\x1b" not in "".join(shown(found, **environment))


def test_who_uses_it_from_another_machine_and_over_what_link(shown):
    far = [attachment("lab2", rate_bps=1_200_000_000), attachment("cpu-17", 300, checked="fair")]
    found = [
        grant("g-0123456789ab", used_milli=500, tenant="research", attachments=far[:1], workload=PYTHON),
        grant("g-1", used_milli=400, attachments=far),
        grant("g-2", used_milli=300, attachments=[attachment("x" * 200, 1100, 10**6, "poor")]),
        grant("g-3", used_milli=200, attachments=[attachment("", 0, checked="")]),
        grant("g-4", used_milli=100),
    ]
    lines = shown(found, columns.parse("grant,from,link"))
    assert [" ".join(line.split()[1:]) for line in lines] == [
        *("FROM LINK", "lab2 85us 1.2G", "2 hosts 300us 1.2G", f"{'x' * 200} 1.1ms 1M poor", "192.0.2.7 -", "- -"),
    ]
    assert {"FROM", "LINK"} <= {*shown(found)[0].split()}, "a pipe gets them"
    del found[2]
    for width in (80, 100, 132):
        lines = shown(found, width=width, NO_COLOR="1")
        assert max(map(grants.width_of, lines)) <= width
        assert {"GRANT", "GOT", "FROM", "LINK", "PROGRAM"} <= {*lines[0].split()}
        assert "lab2" in lines[1] and "85us 1.2G" in lines[1] and "300us 1.2G" in lines[2]
    assert {"FROM", "LINK"}.isdisjoint(shown(found[3:], width=300)[0].split()), "nobody is attached"


@pytest.mark.parametrize(("environment", "has"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_the_class_of_a_link_has_a_colour_where_that_is_allowed(shown, environment, has):
    classes = {"good": 32, "fair": 33, "poor": 31, "refused": 31, "": None}
    found = [
        grant(f"g-{number}", used_milli=9 - number, attachments=[attachment(checked=checked)])
        for number, checked in enumerate(classes)
    ]
    found.append(grant("g-9", attachments=[attachment()]))
    for width in (60, 80, 300):
        lines = shown(found, columns.parse("grant,link,got") if width == 60 else None, width=width, **environment)
        for line, colour in zip(lines[1:], classes.values(), strict=False):
            assert (f"\x1b[{colour}m85us" in line) == (has and colour is not None)
        assert lines[6].startswith(DIM) == has and lines[6].endswith("\x1b[0m") == has
        assert ("\x1b[39m" in lines[6]) == has, "the end of the colour ends no dimming"
    assert "\x1b" not in "".join(shown(found, **environment))


def test_columns_and_orders_are_checked():
    by, reverse = columns.order("-memory")
    found = [grant("g-1", memory_bytes=1), grant("g-2", memory_bytes=3, phase="expired"), grant("g-3", memory_bytes=2)]
    assert [one["id"] for one in grants.ordered(found, by)] == ["g-3", "g-1", "g-2"]
    assert [one["id"] for one in grants.ordered(found, by, reverse)] == ["g-1", "g-3", "g-2"]
    by, reverse = columns.order("-grant")
    assert [one["id"] for one in grants.ordered(found, by, reverse)] == ["g-3", "g-1", "g-2"]
    for wrong in ("", "nothing", "grant,", "--grant", "grant,grant;"):
        with pytest.raises(UsageError, match="no column"):
            columns.parse(wrong)
    with pytest.raises(UsageError, match="no column"):
        columns.order("grant,got")
