"""How bench/gpu judges rows, stores results and shows them in the README files, with made-up results."""

import json
import re
import shutil
import subprocess

import pytest
from gpubench import machine, main, published
from gpubench.groups import GROUPS, PREFLIGHT, select
from gpubench.parts import clients, pairs, reclaim
from gpubench.results import markdown, save
from gpubench.stats import loss, shares, spread, windows

FACTS = {"gpu": "NVIDIA MADE UP", "date": "2026-01-02", "started": "2026-01-02T03", "machine": "No Processor",
         "driver": "580.1", "cuda": "13.0", "python": "3.12", "packages": {}, "simulated": False, "command": "run",
         "commit": "abc1234"}  # fmt: skip


def row(name: str, value: float | None, **more: object) -> dict:
    return {"name": name, "value": value, "unit": "ms", "low": None, "high": None, "n": None, "against": "",
            "text": "", "values": {}, "limit": None, "judged": value, **more}  # fmt: skip


def run(group: str, *rows: dict, state: str = "ok", reason: str = "", **facts: object) -> dict:
    entry = {
        "group": group,
        "state": state,
        "reason": reason,
        "seconds": 1,
        "rows": list(rows),
        "skipped": [],
        "broken": [],
    }
    return {**FACTS, **facts, "groups": [entry]}


def test_the_preflight_runs_where_a_group_shares():
    assert select([]) == [PREFLIGHT, *GROUPS]
    assert [group.name for group in select(["hidden"])] == ["hidden"]
    assert [group.name for group in select(["hidden", "memory"])] == ["preflight", "hidden", "memory"]
    with pytest.raises(KeyError, match="nothing"):
        select(["nothing"])
    assert all(group.seconds <= main.GROUP_SECONDS - 30 for group in GROUPS)


def test_a_failed_run_does_not_hide_an_earlier_good_one():
    good = run("reclaim", row("it", 17), commit="good")
    bad = run("reclaim", row("it", 99), commit="bad", state="failed", reason="why")
    table = markdown({"runs": [good, bad]})
    assert "17 ms" in table
    assert "99 ms" not in table
    assert "`reclaim` at good" in table
    assert "SIMULATED" not in table
    assert "18 ms" in markdown({"runs": [good, bad, run("reclaim", row("it", 18), commit="newer")]})
    assert "`shares` (not run)" in table


def test_a_group_that_only_failed_is_marked():
    barred = row("it | has a bar", 2.0, low=1.0, high=4.0, n=3, against="a | b")
    table = markdown({"runs": [run("shares", barred, state="timed out", reason="limit")]})
    assert "| it / has a bar | 2 ms (1 to 4, n=3) |  | a / b |" in table
    assert "**Timed out.**" in table
    assert "- `shares`: timed out: limit" in table


def test_targets_are_judged_and_the_worst_is_shown():
    rows = [row("a", 0.5, limit=1.0), row("b", 3.0, limit=2.0), row("c", None, text="x", limit=9.0, judged=1.0)]
    table = markdown({"runs": [run("metering", *rows), run("clients", row("missed", 0, limit=0))]})
    assert "| metering | 2 of 3 | b | 3 ms | <= 2: MISSED: 3 |" in table
    assert "| clients | 1 of 1 | missed | 0 ms | <= 0: met |" in table
    assert "| c | x | <= 9: met |  |" in table


def test_runs_of_several_machines_become_one_result(tmp_path):
    def written(name: str, **facts: str) -> object:
        group = facts.pop("group")
        found = run(group, row("wake", 2.0), started=f"2026-01-02T0{len(name)}", **facts)
        (tmp_path / name).write_text(json.dumps({"runs": [found]}))
        return tmp_path / name

    files = [written("bb", machine="second machine", group="shares"), written("a", machine="first", group="reclaim")]
    out = tmp_path / "out"
    for _ in range(2):  # the second time adds nothing
        assert main.merge(files, out) == 0
        found = json.loads((out / "made-up-2026-01-02.json").read_text())
        assert [one["machine"] for one in found["runs"]] == ["first", "second machine"]
    table = (out / "made-up-2026-01-02.md").read_text()
    assert re.search(r"^`reclaim` at abc1234.* first; driver 580", table, re.MULTILINE)
    assert re.search(r"^`shares` at abc1234.* second machine; driver 580", table, re.MULTILINE)
    assert main.merge([*files, written("ccc", gpu="NVIDIA L4", group="shares")], out) == 2
    assert main.merge([tmp_path / "absent"], out) == 2
    assert main.merge([written("dddd", group="shares", simulated=True)], None) == 2


def test_statistics():
    assert spread([3, 1, 2]).median == 2
    assert loss([100, 200], [75, 150]).median == 25
    assert shares([1, 3]) == [25, 75]
    # The first program began a bucket later; the first and last buckets of each are incomplete.
    assert windows([11, 10], [[9, 1, 2, 3, 9], [9, 9, 4, 5, 6, 9]], 1) == [[1, 4], [2, 5], [3, 6]]
    assert windows([11, 10], [[9, 1, 2, 3, 9], [9, 9, 4, 5, 6, 9]], 2) == [[3, 9]]


def test_the_end_of_the_longer_units_is_not_counted_as_all_the_time():
    """After 8 s of taking turns, one program has 0.4 s of units left and runs alone: together they never exceed the
    device."""
    short = {"units": 400, "wall_ns": 8e9}  # 10 ms each, alone 100 a second
    long = {"units": 22, "wall_ns": 8.4e9}  # 200 ms each, alone 5 a second
    assert pairs.summed([short, long], [100, 5]) == pytest.approx(100)


def test_the_target_of_a_reclaim_is_of_what_the_device_cannot_stop_in():
    assert [reclaim.longest_ms(unit) for unit in reclaim.BORROWERS.values()] == [0.02, 1, 20, 200]


def test_only_a_lack_of_memory_is_a_limit_that_holds():
    bare = {"result": 7, "refused": "CUDA_SUCCESS", "total_bytes": 140 << 30}
    verdicts = {
        name: clients._judge(bare, {"result": 7, "refused": name, "total_bytes": clients.SHARE})[0]
        for name in ("CUDA_ERROR_OUT_OF_MEMORY", "RESOURCE_EXHAUSTED", "CUDA_SUCCESS", "CUDA_ERROR_INVALID_VALUE")
    }
    assert list(verdicts.values()) == [True, True, False, False]
    full = {"refused": "OutOfMemoryError", "total_bytes": clients.SHARE}
    assert not clients._judge(bare, {**full, "result": 8})[0]
    assert not clients._judge(bare, {**full, "result": 7, "total_bytes": 140 << 30})[0]


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout with the page of this one and no results."""
    page = tmp_path / published.PAGE
    page.parent.mkdir(parents=True)
    shutil.copy(machine.ROOT / published.PAGE, page)
    results = tmp_path / published.RESULTS
    results.mkdir(parents=True)
    published.refresh(tmp_path)
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    monkeypatch.setattr(main, "RESULTS", results)
    return tmp_path


def shown(checkout) -> str:
    return (checkout / published.PAGE).read_text()


def test_the_page_shows_the_newest_real_gpu(checkout, tmp_path):
    results = checkout / published.RESULTS
    save(results / "simulated-2026-01-03.json", {"runs": [run("shares", row("x", 1), simulated=True)]})
    (results / "other.json").write_text("[]")
    assert not published.is_stale(checkout)
    assert shown(checkout).count(published.NONE) == 1
    for name, gpu, began in (("b", "NVIDIA EARLY", "2026-01-02T08"), ("a", "NVIDIA LATE", "2026-01-02T09")):
        rows = [row("wake", 2.0, limit=3.0)]
        save(results / f"{name}-2026-01-02.json", {"runs": [run("reclaim", *rows, gpu=gpu, started=began)]})
    assert published.is_stale(checkout)
    assert published.refresh(checkout)
    assert not published.refresh(checkout)
    text = shown(checkout)
    assert published.NONE not in text
    assert "**NVIDIA LATE**, No Processor; driver 580.1, CUDA 13.0; 2026-01-02, at abc1234." in text
    assert "](../../bench/results/gpu/a-2026-01-02.md)" in text
    assert "| reclaim | 1 of 1 | wake | 2 ms | <= 3: met |" in text
    assert "`clients` (not run)" in " ".join(text.split())
    assert "NVIDIA EARLY" not in text
    (checkout / published.PAGE).write_text(text.replace("1 of 1", "2 of 2"))
    assert published.is_stale(checkout)
    (checkout / published.PAGE).write_text("nothing")
    with pytest.raises(ValueError, match=r"exact\.md has no block"):
        published.is_stale(checkout)


def test_merging_rewrites_it_where_results_are_kept(checkout, tmp_path, capsys):
    source = tmp_path / "from-elsewhere.json"
    save(source, {"runs": [run("reclaim", row("wake", 2.0, limit=3.0))]})
    assert main.merge([source], tmp_path / "elsewhere") == 0
    assert published.NONE in shown(checkout)
    assert main.merge([source], None) == 0
    assert not published.is_stale(checkout)
    assert "NVIDIA MADE UP" in shown(checkout)
    (checkout / published.PAGE).write_text("nothing")
    assert main.merge([source], None) == 0
    assert "exact.md has no block" in capsys.readouterr().err


def test_what_a_run_writes_does_not_make_its_commit_another(checkout):
    def git(*arguments):
        command = ["git", "-c", "user.name=n", "-c", "user.email=e", *arguments]
        subprocess.run(command, cwd=checkout, check=True, capture_output=True)

    (checkout / "source.c").write_text("1\n")
    for arguments in (["init"], ["add", "."], ["commit", "-m", "all"]):
        git(*arguments)
    clean = machine.commit()
    assert re.fullmatch(r"[0-9a-f]+", clean)
    (checkout / published.PAGE).write_text("another\n")
    assert machine.commit() == clean
    (checkout / "source.c").write_text("2\n")
    assert machine.commit() == f"{clean}+"
