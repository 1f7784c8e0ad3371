"""What a job has according to Slurm's scontrol (22.05), and the grant that this makes."""

import contextlib
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.adapters.slurm import conf, programs
from gpushare.adapters.slurm.job import Has, Job, by_slurm, has, job_of, numbers, requests, words
from gpushare.adapters.slurm.programs import Programs
from gpushare.errors import FailedError, UsageError
from gpushare.text.units import PAGE

GIB = 1 << 30
DEVICES = [
    {"id": f"GPU-{index}", "minor": index, "capacity": {"memory": 16 * GIB}, "reserved": {"memory": 0}}
    for index in range(4)
]
SAID = (
    "JobId=4 JobName=wrap UserId=root(0) JOB_GRES=shard:30 Nodes=vm CPU_IDs=0 Mem=0 GRES={} MinCPUsNode=1 Comment=x"
    " TresPerNode=gres:shard:30"
)
JOB = Job("c", "4", 1000, 1000, 0, "", "")


def hosts(names):
    return {"n[1-2]": ["n1", "n2"]}.get(names, [names])


@pytest.mark.parametrize(
    ("gres", "found"),
    [
        ("shard:30(IDX:0)", [Has((0,), 30)]),
        ("shard:h200:30(IDX:1)", [Has((1,), 30)]),
        ("shard:60(IDX:0-1)", [Has((0, 1), 30)]),
        ("shard:30(0/100,30/100)", [Has((1,), 30)]),
        ("gpu:2(IDX:0,3)", [Has((0, 3), None)]),
        ("gpu:h200:1(IDX:2),nic:1(IDX:0)", [Has((2,), None)]),
        ("nic:1(IDX:0)", []),
        ("", []),
    ],
)
def test_what_a_job_has(gres, found):
    assert has(SAID.format(gres), "vm", hosts) == found


def test_of_several_nodes_this_one_counts():
    answer = "Nodes=n[1-2] CPU_IDs=0 Mem=0 GRES=shard:30(IDX:0) Nodes=n3 CPU_IDs=0-1 Mem=0 GRES=shard:70(IDX:1)"
    assert has(answer, "n2", hosts) == [Has((0,), 30)]
    assert has(answer, "n3", hosts) == [Has((1,), 70)]
    assert has(answer, "n4", hosts) == []


@pytest.mark.parametrize("gres", ["shard:30", "gpu:x", "shard:30(IDX:)", "shard:31(IDX:0-1)", "gpu:1(S:0)"])
def test_what_cannot_be_read_is_reported(gres):
    with pytest.raises(FailedError):
        has(SAID.format(gres), "vm", hosts)


@given(st.text(max_size=60) | st.from_regex(r"(shard|gpu):[0-9:]*\((IDX:)?[0-9,/-]*\)"))
def test_hostile_words_are_read_or_refused(text):
    with contextlib.suppress(FailedError):
        has(SAID.format(text), "vm", hosts)


def test_numbers():
    assert numbers("0-2,5") == (0, 1, 2, 5)


def test_a_share_of_a_device_and_whole_ones():
    [one] = requests(JOB, [Has((1,), 30)], DEVICES, ["default"], 100)
    assert one == {
        "memory": 16 * GIB * 30 // 100 // PAGE * PAGE,
        "time": 300,
        "devices": 1,
        "device": "GPU-1",
        "tenant": "default",
        "uid": 1000,
        "keep": True,
        "key": "slurm/c/4/0/0",
    }
    [two] = requests(JOB, [Has((0, 2), None)], DEVICES, ["default"], 100)
    assert (two["memory"], two["time"], two["devices"], two["device"]) == (16 * GIB, 1000, 2, "GPU-0,GPU-2")
    with pytest.raises(FailedError, match="Slurm gave device 7 and this node has 4"):
        requests(JOB, [Has((7,), 30)], DEVICES, ["default"], 100)


def test_the_account_is_the_tenant_where_there_is_one():
    job = Job("c", "4", 1000, 1000, 2, "labs", "gpushare:memory=2GiB")
    [one] = requests(job, [Has((0,), 30)], DEVICES, ["default", "labs"], 100)
    assert (one["tenant"], one["memory"], one["key"]) == ("labs", "2GiB", "slurm/c/4/2/0")
    assert requests(job, [Has((0,), 30)], DEVICES, ["default"], 100)[0]["tenant"] == "default"
    assert job_of(one["key"]) == "4"
    assert job_of("kubernetes/claim/4/0") is None


def test_the_epilog_of_a_run_ends_nothing_of_the_next_one():
    last, now = Job("c", "4", 1000, 1000, 0, "", ""), Job("c", "4", 1000, 1000, 1, "", "")
    of = {job: requests(job, [Has((0,), 30)], DEVICES, ["default"], 100)[0]["key"] for job in (last, now)}
    assert last.began_by_now(of[last]) and not last.began_by_now(of[now])
    assert now.began_by_now(of[last]) and now.began_by_now(of[now])
    assert not last.began_by_now("slurm/c/44/0/0")
    assert not last.began_by_now("kubernetes/claim/4/0")


class Node:
    """A daemon with a job's grants, and Slurm, which runs `meanwhile` when it is asked for the job's state."""

    def __init__(self, directory: Path, state: str, meanwhile: tuple[int, ...]):
        self.keys: dict[str, str] = {}
        self.programs = Programs(self, directory, 100)
        self._state, self._meanwhile = state, meanwhile

    def begin(self, *runs):
        for run in runs:
            job = replace(JOB, restarts=run)
            self.keys[f"g{run}"] = requests(job, [Has((0,), 30)], DEVICES, ["default"], 100)[0]["key"]
            self.programs._write(job, f"export RUN={run}\n")

    def state(self, job_id):
        self.begin(*self._meanwhile)
        return self._state

    def grants(self):
        return [{"id": name, "key": key} for name, key in self.keys.items()]

    def release(self, grant_id):
        del self.keys[grant_id]


@pytest.mark.parametrize(
    ("before", "state", "meanwhile", "stay"),
    [
        pytest.param((0,), "COMPLETING", (), (), id="queued-again"),
        pytest.param((0,), "PENDING", (1,), (1,), id="begins-once-slurm-has-answered"),
        pytest.param((0, 1), "RUNNING", (), (1,), id="has-begun"),
        pytest.param((), "PENDING", (1,), (1,), id="had-nothing"),
        pytest.param((0, 1), "COMPLETED", (), (), id="ended"),
    ],
)
def test_an_epilog_that_slurmd_calls_late_leaves_the_next_run_alone(
    before, state, meanwhile, stay, tmp_path, monkeypatch
):
    """slurmd gives it the number of the new run as soon as the job is queued again."""
    node = Node(tmp_path, state, meanwhile)
    monkeypatch.setattr(programs, "_state", node.state)
    node.begin(*before)
    node.programs.epilog(replace(JOB, restarts=1))
    assert [*node.keys] == [f"g{run}" for run in stay]
    assert [file.name for file in tmp_path.glob("[0-9]*")] == ["4" for _ in stay]


def test_a_comment():
    assert words("night run; gpushare:memory=8GiB,class=interactive,priority=3 x") == {
        "memory": "8GiB", "class": "interactive", "priority": 3,
    }  # fmt: skip
    assert words("gpushare:idle-memory=lend,idle-after=5m") == {"idle_memory": "lend", "idle_after_seconds": 300}
    assert words("no wish") == {}
    for bad in ("tenant=labs", "memory", "priority=x", "idle-after=soon", "uid=0"):
        with pytest.raises(UsageError):
            words(f"gpushare:{bad}")


def test_who_is_not_called_by_slurmd_is_notified():
    with pytest.raises(UsageError, match="SLURM_JOB_ID"):
        Job.of({})


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=60))
def test_a_refusal_is_one_line_whatever_is_in_it(text):
    done = subprocess.run(["sh", "-c", conf.refusal(text)], capture_output=True, env={"HOME": "/nowhere"})
    assert done.returncode == 1
    assert done.stdout.count(b"\n") == 1
    assert done.stdout.startswith(b"print gpushare: ")


def test_variables_for_a_task_keep_the_users_libraries():
    text = conf.task({"LD_PRELOAD": "/ours.so", "GPUSHARE_GRANT_DIR": "/a b/$x"}, ["CUDA_VISIBLE_DEVICES"])
    done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, env={"LD_PRELOAD": ""})
    assert done.stdout == "unset CUDA_VISIBLE_DEVICES\nexport LD_PRELOAD=/ours.so\nexport GPUSHARE_GRANT_DIR=/a b/$x\n"
    with_theirs = subprocess.run(["sh", "-c", text], capture_output=True, text=True, env={"LD_PRELOAD": "/dev/null"})
    assert with_theirs.stdout.splitlines()[1] == "export LD_PRELOAD=/ours.so:/dev/null"


# As scontrol 22.05 prints it; a name and a WCKey are what users say.
SHOWN = (
    "JobId=4 JobName={name} UserId=nobody(65534) GroupId=nogroup(65534) MCS_label=N/A Priority=1 Account=(null)"
    "{wckey} JobState=COMPLETED Reason=None Dependency=(null) NodeList=vm JOB_GRES=shard:30"
    " Nodes=vm CPU_IDs=0 Mem=0 GRES=shard:30(IDX:0) MinCPUsNode=1 Features={text} Command={text} Comment={text}"
)
FORGED = "x UserId=root(0) WCKey=y JobState=RUNNING Nodes=vm CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:0) MinCPUsNode=1"


@given(*(st.sampled_from(["", "x", FORGED, f"{FORGED} JobName=x"]) | st.text("x =JobState", max_size=30),) * 3)
def test_a_users_words_are_not_slurms(name, wckey, text):
    shown = SHOWN.format(name=name, wckey=f" WCKey={wckey}" if wckey else "", text=text)
    answer = by_slurm(shown, name, wckey)
    assert answer.split()[0] == "JobState=COMPLETED"
    assert has(answer, "vm", hosts) == [Has((0,), 30)]


def test_a_name_that_is_not_the_jobs_is_refused():
    with pytest.raises(FailedError):
        by_slurm(SHOWN.format(name="one", wckey="", text=""), "another", "")
