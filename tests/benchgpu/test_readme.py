"""The block of the newest real GPU in both README files, from made-up results."""

import json
import re
import shutil
import subprocess

import gpuresult
import pytest
from gpubench import machine, main, readme
from gpubench.results import save


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """With this one's README files and results, but none of a real GPU."""
    for name in readme.FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(machine.ROOT / name, tmp_path / name)
    results = tmp_path / "bench" / "results"
    shutil.copytree(machine.ROOT / "bench" / "results", results)
    while (found := readme.latest(results)) is not None:
        found[0].unlink()
    readme.refresh(tmp_path)
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    monkeypatch.setattr(main, "RESULTS", results)
    return tmp_path


def stored(checkout, name="made-up-2026-01-02", parts=None, **facts):
    path = checkout / "bench" / "results" / f"{name}.json"
    save(path, gpuresult.document(parts, **facts))
    return path


def texts(checkout):
    return [(checkout / name).read_text() for name in readme.FILES]


def test_this_checkout_shows_its_newest_result():
    assert readme.stale(machine.ROOT) == {}


def test_without_a_real_gpu_both_say_so(checkout):
    stored(checkout, "simulated-2026-01-03", simulated=True)
    assert readme.stale(checkout) == {}
    assert all(text.count(readme.NONE) == 1 for text in texts(checkout))


def test_a_result_out_of_date_is_found_and_mended(checkout):
    path = stored(checkout)
    assert len(readme.stale(checkout)) == 2
    assert readme.refresh(checkout) == ["README.md", "bench/README.md"]
    assert readme.refresh(checkout) == []
    short, long = texts(checkout)
    for text, link in ((short, "bench/results"), (long, "results")):
        assert readme.NONE not in text
        assert "**NVIDIA MADE UP**, No Processor, 16 cores, Linux 6.18; driver 580.1, CUDA 13.0" in text
        assert "2026-01-02, at abc1234" in text
        assert f"]({link}/made-up-2026-01-02.md)" in text
        assert "| clients | clients caught by gpushare | 12 of 12 |" in text
    assert "### What these numbers decide" in long
    assert "| The hardware preempts inside a kernel | holds |" in long
    assert "decide" not in short
    # A number changes, by hand or by a new run: neither file shows it any more.
    document = json.loads(path.read_text())
    (row,) = [row for entry in document["runs"][0]["parts"] for row in entry["rows"] if "clients" in row["name"]]
    row["value"] = 11
    path.write_text(json.dumps(document))
    assert len(readme.stale(checkout)) == 2
    (checkout / "README.md").write_text(short.replace("12 of 12", "13 of 13"))
    assert "| 11 of 12 |" in readme.stale(checkout)[checkout / "README.md"]


def test_every_row_that_matters_is_one_that_a_part_gives():
    parts = gpuresult.parts()
    for part, pattern in readme.ROWS:
        assert any(re.fullmatch(pattern, row["name"]) for row in parts[part]), (part, pattern)


def test_what_was_not_measured_is_not_shown(checkout):
    parts = gpuresult.parts()
    del parts["clients"], parts["stalls"]
    stored(checkout, parts=parts)
    readme.refresh(checkout)
    short, long = texts(checkout)
    for text in (short, long):
        assert "| clients |" not in text
        assert "`clients` (not run)" in text
    assert "| The hardware preempts" not in long
    assert "- not measured: The hardware preempts" in long


def test_the_newest_is_by_when_it_began(checkout):
    stored(checkout, "a-2026-01-02", started="2026-01-02T09:00:00+0000", gpu="NVIDIA LATE")
    stored(checkout, "b-2026-01-02", started="2026-01-02T08:00:00+0000", gpu="NVIDIA EARLY")
    readme.refresh(checkout)
    assert all("NVIDIA LATE" in text and "NVIDIA EARLY" not in text for text in texts(checkout))


def test_a_file_without_the_lines_is_named(checkout):
    path = checkout / "bench" / "README.md"
    path.write_text(path.read_text().replace(readme.END, ""))
    with pytest.raises(ValueError, match=r"bench/README\.md has no block"):
        readme.stale(checkout)


def test_the_command_rewrites_them_where_results_are_kept(checkout, tmp_path):
    source = tmp_path / "from-elsewhere.json"
    save(source, gpuresult.document())
    assert main._merge([source], tmp_path / "elsewhere") == 0
    assert readme.NONE in texts(checkout)[0]
    assert main._merge([source], None) == 0
    assert readme.stale(checkout) == {}
    assert all("NVIDIA MADE UP" in text for text in texts(checkout))


def test_a_readme_that_cannot_be_rewritten_does_not_fail_the_run(checkout, tmp_path, capsys):
    (checkout / "README.md").write_text("nothing")
    source = tmp_path / "from-elsewhere.json"
    save(source, gpuresult.document())
    assert main._merge([source], None) == 0
    assert "README.md has no block" in capsys.readouterr().err


def test_what_a_run_writes_does_not_make_its_commit_another(checkout):
    def git(*arguments):
        command = ["git", "-c", "user.name=n", "-c", "user.email=e", *arguments]
        subprocess.run(command, cwd=checkout, check=True, capture_output=True)

    (checkout / "source.c").write_text("1\n")
    stored(checkout)
    for arguments in (["init"], ["add", "."], ["commit", "-m", "all"]):
        git(*arguments)
    clean = machine.commit()
    assert re.fullmatch(r"[0-9a-f]+", clean)
    stored(checkout, commit="other")
    readme.refresh(checkout)
    assert machine.commit() == clean
    (checkout / "source.c").write_text("2\n")
    assert machine.commit() == f"{clean}+"
