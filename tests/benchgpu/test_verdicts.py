"""What a result of bench/gpu decides, from made-up rows: nothing here was measured."""

import json
import re

import gpuresult
import pytest
from gpubench import decision, defaults, machine, results, verdicts
from gpubench.parts import policy
from gpubench.results import markdown, save

HOLDS, CONTRADICTED, CLOSE, MISSING = "holds", "contradicted", "too close to say", "not measured"


def changed(pattern: str, **new: object) -> gpuresult.Parts:
    """The rows in which all holds, with those whose name matches changed: keys of a row, or of its values. A function
    is given the old number."""
    parts, seen = gpuresult.parts(), 0
    for row in (row for rows in parts.values() for row in rows):
        if not re.fullmatch(pattern, row["name"]):
            continue
        seen += 1
        for key, value in new.items():
            place = row if key in row else row["values"]
            place[key] = value(place[key]) if callable(value) else value
    assert seen
    return parts


def without(pattern: str) -> gpuresult.Parts:
    parts = gpuresult.parts()
    kept = {part: [row for row in rows if not re.fullmatch(pattern, row["name"])] for part, rows in parts.items()}
    assert kept != parts
    return kept


def told(parts: gpuresult.Parts, about: str) -> tuple[str, str]:
    found = decision.made(parts)
    (one,) = [one for one in (*found["claims"], *found["targets"]) if about in one["claim"]]
    return one["verdict"], one["figures"]


SUMS, WAKE = r".*: throughput of both, summed", r"wake to the end .*, p99"
OWNER = r"owner's wake to the end of its first kernel .*, p99"
FULL_SUMS = r"(?!.*eager).*: throughput of both, summed"
GEMM_SUMS = r"gemm \+ gemm: throughput of both, summed"
SPIN, BLOCKED = r"a 20 us kernel beside a kernel that spins .*, {}", r"a 20 us kernel beside a stream blocked .*, {}"
COPIES, COMPUTE = "copies beside another's compute, bare", "compute beside another's copies, bare"
STACK = "a kernel with 16 KiB of local memory"
WHOLE, PROCESS = "all steps together: cuMemGetInfo .*", "all steps together: NVML, of the process .*"


def moved(mib: float) -> dict[str, float]:
    return {"value": mib, "low": mib - 1, "high": mib + 1}


CASES = [
    ("Exclusive when full", CONTRADICTED, (FULL_SUMS, {"free": 105})),
    ("Exclusive when full", CLOSE, (GEMM_SUMS, {"free": 105})),
    ("Exclusive when full", HOLDS, (GEMM_SUMS, {"free": 99.5})),  # within what switching may cost
    ("Together when not", CONTRADICTED, (r"eager \+ eager.*summed", {"together": 90})),
    ("Together when not", CLOSE, (r"eager \+ eager.*summed", {"together": 101})),
    ("launch-bound program beside one", CONTRADICTED, (r".*: eager throughput", {"free": 30, "together": 35})),
    ("launch-bound program beside one", CLOSE, (r"eager \+ gemm: eager throughput", {"free": 30, "together": 35})),
    ("costs no work", CONTRADICTED, (SUMS, {"overlap": 90})),
    ("costs no work", CLOSE, (GEMM_SUMS, {"overlap": 90})),
    ("wakes another sooner", CONTRADICTED, (WAKE, {"overlap": 20})),
    ("wakes another sooner", CLOSE, (WAKE, {"overlap": 9})),
    ("A lease wakes", CONTRADICTED, (WAKE, {"free": 1})),
    ("A lease wakes", CLOSE, (r".*beside long, p99", {"free": 1})),
    ("A lease wakes", HOLDS, (r".*beside eager, p99", {"free": 1})),  # which leaves the device idle
    ("gpushare wakes an owner", CONTRADICTED, (OWNER, {"bare": 0.5})),
    ("gpushare wakes an owner", CLOSE, (OWNER.replace(".*", "beside 20 ms.*"), {"bare": 2})),
    ("Event spans", CONTRADICTED, (r".* event spans", {"free": 1.02})),
    ("Event spans", CONTRADICTED, (r".* event spans", {"drain": 1.9})),
    ("Event spans", CLOSE, (r"gemm \+ gemm: .* event spans", {"drain": 1.2})),
    ("hardware preempts", CONTRADICTED, (SPIN.format(".*"), {"value": 11e6})),
    ("hardware preempts", CLOSE, (SPIN.format("max"), {"value": 2e6})),
    ("blocked in wait-value", CONTRADICTED, (BLOCKED.format("p50"), {"value": 60})),
    ("blocked in wait-value", CLOSE, (BLOCKED.format("p99"), {"value": 2000})),
    ("hard bound", CONTRADICTED, (".*hard gate.*", {"hung": 0})),
    ("hard bound", CONTRADICTED, (".*soft gate.*", {"hung": 5, "value": None})),
    ("hard bound", CLOSE, (".*hard gate.*", {"hung": 3})),
    ("Copies run beside", CONTRADICTED, (f"{COPIES}|{COMPUTE}", {"value": 26, "low": 25, "alone": 51})),
    ("Copies run beside", CLOSE, (COMPUTE, {"value": 80, "low": 70})),
    ("Local memory", HOLDS, (STACK, moved(3960))),  # what the stack had before is given back
    ("Local memory", CONTRADICTED, (STACK, moved(2048))),
    ("Local memory", CLOSE, (STACK, {"low": 2048})),
    ("whole device omits nothing", CONTRADICTED, (WHOLE, moved(300))),
    ("whole device omits nothing", CLOSE, (WHOLE, {"high": 300})),
    ("bytes of a process", CONTRADICTED, (PROCESS, moved(0))),
    ("bytes of a process", CLOSE, (PROCESS, {"high": 0})),
    ("share error over 10 s", "missed", (r".*10/90, gpushare: share error over 10 s", {"high": 2.1})),
    ("share error over 10 s", "met", (r".*: share error over 1 s", {"high": 30})),
    ("busy time against", "missed", ("20 ms kernels: busy time against CUDA events", {"value": -1.5})),
    ("launch overhead", "missed", ("2 us kernels, gpushare", {"value": 1.2})),
    ("launch overhead", "met", ("20 us kernels, two programs together, gpushare", {"value": 30})),
    ("steps of PyTorch", "missed", ("transformer training step, gpushare", {"value": 1.2})),
    ("reclaim", "missed", (r".*beside 20 us kernels, p99", {"gpushare": 3.1})),
    ("reclaim", "met", (r".*beside a graph of 200 ms, p99", {"gpushare": 202})),
    ("every kind of client", "missed", ("clients caught by gpushare", {"value": 11})),
]


@pytest.mark.parametrize(("about", "verdict", "change"), CASES, ids=[f"{case[0]}-{case[1]}" for case in CASES])
def test_a_row_decides(about, verdict, change):
    pattern, new = change
    good = HOLDS if verdict in (HOLDS, CONTRADICTED, CLOSE) else "met"
    assert told(gpuresult.parts(), about)[0] == good
    assert told(changed(pattern, **new), about)[0] == verdict


def test_what_rests_on_a_contradicted_claim_is_named():
    parts = changed(FULL_SUMS, free=105)
    assert "rests on the claim" not in told(gpuresult.parts(), "Exclusive when full")[1]
    assert told(parts, "Exclusive when full")[1].endswith("`native/arbiter/core_state.h` rests on the claim")
    assert all((machine.ROOT / claim.rests).is_file() for claim in verdicts.CLAIMS)


@pytest.mark.parametrize(
    ("about", "rows", "missing"),
    [
        ("Exclusive when full", FULL_SUMS, "`policy-1`, `policy-2`"),
        ("Together when not", r"eager \+ eager.*", "eager + eager"),
        ("wakes another sooner", r"wake .* beside (decode|gemm|long), p99", "`policy-1`, `policy-2`"),
        ("hard bound", ".*soft gate.*", "`stalls`"),
        ("hardware preempts", SPIN.format(".*"), "`stalls`"),
        ("Copies run beside", COMPUTE, "`copies`"),
        ("Local memory", STACK, "`hidden`"),
        ("bytes of a process", PROCESS, "`hidden`"),
        ("share error over 10 s", r".*over 10 s", "`shares`"),
        ("reclaim", r"owner's wake.*", "`reclaim`"),
        ("every kind of client", "clients caught by gpushare", "`clients`"),
    ],
)
def test_what_is_missing_is_named(about, rows, missing):
    verdict, text = told(without(rows), about)
    assert verdict == MISSING
    assert missing in text


def test_a_row_of_an_older_program_is_no_verdict():
    verdict, text = told(changed(STACK, values={}), "Local memory")
    assert (verdict, text) == (MISSING, f'`processors` of "{STACK}"')


def test_some_of_the_pairs_say_how_many_they_are():
    parts = gpuresult.parts()
    del parts["policy-2"]
    assert "3 of 6 pairs" in told(parts, "Exclusive when full")[1]
    assert "(decode + eager, 1 of 3 pairs)" in told(parts, "launch-bound program beside one")[1]


def test_the_better_lease_is_one_policy_for_all_pairs():
    """Not the luckiest of each."""
    parts = changed(FULL_SUMS, drain=97, overlap=96, free=96)
    for row in parts["policy-2"]:
        if row["name"] == "long + long: throughput of both, summed":
            row["values"].update(drain=80, overlap=110)
    verdict, text = told(parts, "Exclusive when full")
    assert verdict == CLOSE
    assert "`drain` 97" in text
    assert "least for long + long" in text


def test_rows_that_cannot_be_judged_lose_nothing(tmp_path):
    document = gpuresult.document(changed(STACK, local_bytes=0))
    save(tmp_path / "x.json", document)
    (one,) = [one for one in document["decides"]["claims"] if one["claim"].startswith("Local memory")]
    assert one["verdict"] == MISSING
    assert "ZeroDivisionError" in one["figures"]
    assert json.loads((tmp_path / "x.json").read_text())["runs"] == document["runs"]


def test_the_simulators_defaults_come_from_its_source():
    found = defaults.read()
    assert {default.name for default in defaults.DEFAULTS} <= set(found)
    lines = {line["name"]: line for line in defaults.beside(verdicts.Rows(gpuresult.parts()), found)}
    assert set(lines) == {default.name for default in defaults.DEFAULTS}
    assert lines["context_bytes"]["simulated"] == f"{found['context_bytes'] >> 20} MiB"
    assert lines["slice_ns"]["device"].startswith("2070 us (p99 2265)")  # without what the kernel takes alone
    assert lines["switch_ns"]["device"].startswith("86.3 us")  # 2070 us x (100 / 96 - 1)
    assert lines["RESIDENT_THREADS"]["device"] == "270336 threads; 1 of threads x bytes was taken"
    parts = gpuresult.parts()
    del parts["stalls"], parts["hidden"]
    assert {line["name"] for line in defaults.beside(verdicts.Rows(parts), found)} == {"launch_ns", "copy_bytes_per_us"}


def test_the_table_says_what_is_decided():
    packages = {"torch": "2.11.0", "numpy": "2.3"}
    document = gpuresult.document(without(STACK), surroundings={"python": "3.12.3", "packages": packages})
    document["decides"] = results.decided(document)
    table = markdown(document)
    assert re.search(r"^\| The hardware preempts inside a kernel \| holds \| p50 2100 us", table, re.MULTILINE)
    assert re.search(r"^- not measured: Local memory .*Missing: .*`hidden`", table, re.MULTILINE)
    assert re.search(r"^\| launch overhead: <= 1 % \| met \|", table, re.MULTILINE)
    assert "| slice when several have work | `slice_ns` | 2000 us | 2070 us" in table
    assert "With Python 3.12.3, torch 2.11.0, numpy 2.3." in table
    # Rows that compare the same things stand below each other.
    assert "| number | free | drain | overlap | together | unit | against |" in table
    assert "| gemm + long: gemm event spans | 2 | 1 | 1.1 | 2 | times alone (median) |  |" in table


def test_a_simulated_device_decides_nothing(tmp_path):
    document = gpuresult.document(simulated=True)
    save(tmp_path / "x.json", document)
    assert document["decides"] is None
    assert "decide" not in (tmp_path / "x.md").read_text()


def test_the_end_of_the_longer_units_is_not_counted_as_all_the_time():
    """8 s of turns; then one has 0.4 s of its units left, alone: together they never did more than the device can."""
    short = {"units": 400, "wall_ns": 8e9}  # 10 ms each, alone 100 a second
    long = {"units": 22, "wall_ns": 8.4e9}  # 200 ms each, alone 5 a second
    assert policy._summed([short, long], [100, 5]) == pytest.approx(100)
