"""What `top` shows, from answers of the node API, without a screen or a daemon."""

import os
import pwd
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from views.tops import GIB, attachment, device, grant, tenant

from gpushare.text.overview import DeviceTime
from gpushare.tui import columns, processes
from gpushare.tui.model import KEPT, Answers, Model, chosen, history_line, widths


def look(model=None, grants=(), devices=(), tenants=()):
    return (model or Model()).look(Answers(list(grants), list(devices), list(tenants)))


def test_a_row_per_grant_and_device_with_what_it_had_at_each_look():
    model = Model()
    for used in (100, 900):
        picture = look(model, [grant("g-1", used_milli=used), grant("g-2", at=1)])
    assert [(row.key, list(row.history)) for row in picture.grants] == [(("g-1", 0), [100, 900]), (("g-2", 1), [0, 0])]
    # A grant that ended and came back, as after a daemon that lost it, has no earlier history.
    look(model, [grant("g-2", at=1)])
    again = look(model, [grant("g-1", used_milli=5), grant("g-2", at=1)])
    assert list(again.grants[0].history) == [5]


def test_processes_are_a_tree_below_their_grant():
    parents = {10: 1, 20: 10, 30: 20, 40: 10, 50: 50}
    assert processes.tree([50, 40, 30, 20, 10, 60], parents) == [
        *((10, "├─"), (20, "│ ├─"), (30, "│ │ └─"), (40, "│ └─")),
        *((50, "├─"), (60, "└─")),
    ]
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        # What it has answered it has the memory for, and it does nothing more; just begun, it may have none yet.
        child.stdin.write(b"up\n")
        child.stdin.flush()
        assert child.stdout.readline() == b"up\n"
        eyes = processes.Processes()
        eyes.look([child.pid])
        found = eyes.look([child.pid, os.getpid(), 1 << 30])
    assert found.keys() == {child.pid, os.getpid()}
    waits = found[child.pid]
    assert (waits.parent, waits.user, waits.program) == (os.getpid(), pwd.getpwuid(os.getuid()).pw_name, "cat")
    assert (waits.cpu_milli, waits.age_seconds < 600, waits.memory_bytes > 0) == (0, True, True)
    answers = Answers([grant("g-1", processes=[10, 20], pid=10)], [], [], processes=found | {10: waits})
    picture = Model().look(answers)
    assert [(row.pid, row.process) for row in picture.below(picture.grants[0])] == [(10, waits), (20, None)]
    assert "".join(text for text, _ in columns.process_line(picture.below(picture.grants[0])[1], 79)).startswith(
        " └─20"
    )


def test_a_grant_says_which_machine_uses_it_over_what_link():
    far = [attachment("lab2", 1100, 10**9, "poor")]
    used, own = look(None, [grant("g-1", attachments=far), grant("g-2")]).grants
    assert (used.hosts, used.link, used.link_class, own.hosts) == ("lab2", "1.1ms 1G poor", "poor", "")
    assert [row.id for row in chosen([used, own], "192.0.2.7", lambda row: row.id, down=False)] == ["g-1"]
    both = columns.grant_columns([used, own])
    line = columns.layout(both, 200).line(used)
    assert ("lab2" in "".join(text for text, _ in line), line) and ("1.1ms 1G poor", "warning") in [
        (text.strip(), look) for text, look in line
    ]
    titles = {column.title for column in columns.grant_columns([own])}
    assert titles.isdisjoint({"FROM", "LINK"}) and {"FROM", "LINK"} <= {column.title for column in both}


def test_a_grant_says_who_runs_what_where():
    pod = {"namespace": "ml", "name": "train-0", "container": "main", "uid": ""}
    workload = {"program": "python train.py", "container": "c" * 64, "pod": pod}
    grants = [grant("g-1", workload=workload, uid=7), grant("g-2", workload=workload | {"pod": None}), grant("g-3")]
    grants.append(grant("g-4", workload=workload | {"pod": None, "container": "nightly-training"}))
    first, second, third, fourth = Model().look(Answers(grants, [], [], users={7: "ada"})).grants
    assert (first.user, first.program, first.place) == ("ada", "python train.py", "ml/train-0/main")
    assert fourth.place == "nightly-training"
    assert (second.place, third.place, third.program) == ("c" * 12, "", "")
    assert [column.title for column in columns.grant_columns([third])].count("CONTAINER") == 0
    assert [row.id for row in chosen([first, second, third], "train ml/", lambda row: row.id, down=False)] == ["g-1"]


def test_a_device_tells_what_its_driver_measures():
    hot = {"temperature_celsius": 87, "power_milliwatts": 287_400, "power_limit_milliwatts": 300_000, "ecc_errors": 1}
    rows = look(devices=[device(0, sensors=hot | {"slowed_by": ["heat", "hardware"]}), device(1)]).devices
    line = columns.layout(columns.device_columns(rows), 200).line(rows[0])
    assert ("1 ECC error, slowed by its hardware", "warning") in line
    assert (" 87C", "warning") in line
    assert any("287/300W" in text and look == "" for text, look in line)
    assert [column.title for column in columns.device_columns(rows[1:])][-1] == "MEMORY"


def test_a_history_does_not_grow_without_end():
    model = Model()
    for _ in range(KEPT + 5):
        picture = look(model, [grant("g-1")])
    assert len(picture.grants[0].history) == KEPT


def test_guaranteed_is_what_was_asked_for_and_granted():
    served, reserved = grant("g-1", served_milli=400), grant("g-2", served_milli=0, served_limit_milli=0)
    assert [row.guaranteed_milli for row in look(grants=[served, reserved]).grants] == [250, 250]


def test_devices_say_what_is_wrong_with_them():
    sick = device(0, health="unhealthy", health_reason="XID 79")
    drained = device(1, state="drained", drain_reason="ticket 4")
    quiet = device(2, state="draining")
    rows = look(devices=[sick, drained, quiet, device(3)]).devices
    assert [row.fault for row in rows] == ["does not work: XID 79", "", "", ""]
    assert [row.note for row in rows] == ["", "drained: ticket 4", "draining", ""]


def test_switching_is_seen_from_the_second_look_on():
    model = Model()
    look(model, devices=[device(wall_ns=0)])
    row = look(model, [grant("g-1", used_milli=300, borrowed_milli=100)], [device(wall_ns=10**9, switch_ns=10**7)])
    assert row.devices[0].time == DeviceTime(guaranteed=200, borrowed=100, switching=10, idle=690)


def test_tenants_are_a_tree_in_the_daemons_order():
    rows = look(tenants=[tenant("b"), tenant("b/x", "b"), tenant("a"), tenant("b/x/y", "b/x")]).tenants
    assert [(row.name, row.level) for row in rows] == [("b", 0), ("b/x", 1), ("b/x/y", 2), ("a", 0)]


def test_sorted_and_filtered():
    rows = look(
        grants=[
            grant("g-1", tenant="ml/a", used_milli=10, processes=[4711], gang={"id": "Job-7"}),
            grant("g-2", tenant="ml/b", used_milli=30, notice="asked to END"),
            grant("g-3", tenant="web", used_milli=10),
        ]
    ).grants

    def names(wanted, *, down=False):
        return [row.id for row in chosen(rows, wanted, lambda row: row.got_milli, down=down)]

    assert names("") == ["g-1", "g-3", "g-2"]
    assert names("", down=True) == ["g-2", "g-1", "g-3"]
    assert names("ML") == ["g-1", "g-2"]
    assert names("ml end") == ["g-2"]
    assert (names("4711"), names("job-7"), names("ml web")) == (["g-1"], ["g-1"], [])


def test_a_history_line_has_the_newest_at_the_right():
    assert history_line([0, 1, 100, 101, 799, 800], 800, 8) == "  ·▁▁▂██"
    assert history_line([0, 200, 400], 100, 3) == "·▄█"
    assert history_line([1000, 5], 10, 1) == "▄"
    assert history_line([0, 0], 0, 2) == "··"
    assert history_line([], 500, 3) == "   "
    assert history_line([500], 500, 0) == ""


parts = st.tuples(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000)).filter(lambda one: sum(one) <= 1000)


@settings(max_examples=40)
@given(parts, st.integers(0, 300))
def test_a_bar_is_as_wide_as_asked_and_no_part_is_far_off(some, width):
    time = DeviceTime(*some, 1000 - sum(some))
    found = widths(time, width)
    assert sum(found) == width
    assert all(abs(size - milli * width / 1000) <= 1 for size, milli in zip(found, (*some, time.idle), strict=True))
    text = "".join(text for text, _ in columns.bar(time, width))
    assert [text.count(fill) for fill in columns.FILLS] == list(found)


@settings(max_examples=40)
@given(st.text(), st.integers(1, 40), st.booleans())
def test_whatever_a_name_is_it_takes_its_cells_and_nothing_obeys_it(text, width, right):
    found = columns.fit(text, width, right=right)
    assert columns.cell_len(found) == width
    assert found.isprintable()


ROW = look(grants=[grant("g-1", used_milli=125, notice="n", memory_bytes=GIB // 2)]).grants[0]


@pytest.mark.parametrize("width", [1, 20, 79, 100, 159, 199, 400])
def test_columns_fill_a_width_and_the_first_is_always_there(width):
    found = columns.layout(columns.GRANTS, width)
    line = "".join(text for text, _ in found.line(ROW))
    assert columns.cell_len(line) <= max(width, 14)
    assert len(line) == len("".join(text for text, _ in found.titles("GOT", down=True)))
    assert line.startswith("g-1")


def test_a_narrow_terminal_has_what_is_asked_for_first():
    def titles(every, width):
        return [column.title for column, _ in columns.layout(every, width).columns]

    assert titles(columns.GRANTS, 79) == (
        "GRANT TENANT PROGRAM DEV ASKED GOT WAITED MEMORY HISTORY".split()  # noqa: SIM905
    )
    assert titles(columns.TENANTS, 79) == [column.title for column in columns.TENANTS if column.title != "GRANTS"]
    every = [column.title for column in columns.DEVICES]
    simulated = columns.device_columns(look(devices=[device(0, sensors={"sm_clock_mhz": 1410})]).devices)
    assert titles(simulated, 79) == ["DEV", "LAST SECOND", "█ GUAR", "▒ BORR", "/ SWITCH", "· IDLE", "MEMORY", "CLOCK"]
    assert titles(columns.DEVICES, 79) == (
        ["DEV", "LAST SECOND", "█ GUAR", "▒ BORR", "· IDLE", "MEMORY", "UTIL", "TEMP", "POWER"]
    )
    assert titles(columns.DEVICES, 159) == every
    assert titles(columns.GRANTS, 199) == [column.title for column in columns.GRANTS]


def test_a_click_finds_its_column():
    found = columns.layout(columns.GRANTS, 79)
    for column, width in found.columns:
        begin = sum(size + 1 for _, size in found.columns[: found.columns.index((column, width))])
        assert found.at(begin) is found.at(begin + width - 1) is column
    assert found.at(500) is None


@pytest.mark.parametrize(
    ("used", "limit", "text"),
    [(0, 8 * GIB, "0/8GiB"), (GIB // 2, GIB, "0.5/1GiB"), (3 << 20, 512 << 20, "3/512MiB"), (5, 0, "5/0B")],
)
def test_memory_is_in_the_unit_of_its_limit(used, limit, text):
    assert columns.of(used, limit) == text
