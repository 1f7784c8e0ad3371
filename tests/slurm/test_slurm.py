"""A real Slurm on loopback: its shards of simulated devices are enforced."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from run.makingroom import Room
from run.running import GPUSHARE, SPIN, Daemon
from run.waiting import until
from schedulers import slurm

from gpushare.adapters.slurm import conf
from gpushare.text.units import PAGE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("slurm"),
    pytest.mark.skipif(os.geteuid() != 0, reason="slurmd starts jobs of other users"),
]

WORK = f"{SPIN} --kernel-ns 200000 --seconds 60"
GIB = 1 << 30


@pytest.fixture(scope="module")
def cluster():
    """(Slurm, daemon, Room): one device of 16 GiB, 100 shards."""
    if (gone := slurm.missing()) is not None:
        pytest.skip(f"{gone} is not installed")
    directory = Path(tempfile.mkdtemp(prefix="gst-"))
    directory.chmod(0o1777)
    (directory / "state").mkdir(mode=0o755)
    room = Room(directory)
    daemon = Daemon(directory / "state", "1x16GiB").patch(room.patch).start()
    made = None
    try:
        command = ["adapter", "slurm", "scripts", directory, "--socket", daemon.layout.socket]
        assert subprocess.run([*GPUSHARE, *map(str, command)], env=daemon.env).returncode == 0
        (directory / "slurm").mkdir(mode=0o755)
        made = slurm.Slurm(directory / "slurm", 1)
        for name in ("prolog", "epilog", "task-prolog"):
            (directory / name).rename(directory / "slurm" / name)
        made.directory.chmod(0o1777)
        gres = conf.gres(daemon.client.devices(), [str(file) for file in made.files], slurm.SHARDS)
        (made.directory / "gres.conf").write_text(gres)
        made.start()
        yield made, daemon, room
    finally:
        if made is not None:
            made.stop()
        daemon.stop()
        shutil.rmtree(directory)


@pytest.fixture
def site(cluster):
    made, daemon, room = cluster
    yield made, daemon
    room.is_there()
    subprocess.run(["scancel", "--user=nobody"], env=made.env, check=True)
    until(lambda: not daemon.client.grants(), "the grants end with their jobs", 30)
    daemon.nothing_left()


def running(made, daemon, *jobs):
    """Waits until a process of each job has joined its grant, and returns the grants by job."""

    def found():
        by_job = {grant["key"].split("/")[2]: grant for grant in daemon.client.grants() if grant["processes"]}
        return by_job if all(str(job) in by_job for job in jobs) else None

    def seen():
        return f"jobs run: {[(job, made.state(job), made.out(job)) for job in jobs]}\n{made.logs()}"

    # Slurm itself takes up to a minute to start a requeued job again on a busy machine.
    return until(found, seen, 80)


def test_two_jobs_share_a_device_by_their_shards_and_a_third_waits(site):
    made, daemon = site
    small = made.submit("--gres=shard:30", script=WORK)
    large = made.submit("--gres=shard:70", "--comment=night gpushare:memory=8GiB", script=WORK)
    third = made.submit("--gres=shard:30", script=WORK)
    grants = running(made, daemon, small, large)
    parts = {job: grants[str(job)]["devices"][0] for job in (small, large)}
    assert [parts[job]["time_milli"] for job in (small, large)] == [300, 700]
    assert parts[small]["memory_limit_bytes"] == 16 * GIB * 30 // 100 // PAGE * PAGE
    assert parts[large]["memory_limit_bytes"] == 8 * GIB
    assert grants[str(small)]["uid"] == slurm.NOBODY
    pids = [grants[str(job)]["processes"][0] for job in (small, large)]
    began = daemon.busy(*pids)
    until(lambda: sum(daemon.busy(*pids)) > sum(began) + 600_000_000, "they work for a while", 60)
    got = [after - before for before, after in zip(began, daemon.busy(*pids), strict=True)]
    assert 0 < got[0] < got[1], got  # how exactly is not for a busy machine to say
    assert made.state(third) == "PENDING"
    made.cancel(small)
    running(made, daemon, third)
    assert str(small) not in {grant["key"].split("/")[2] for grant in daemon.client.grants()}


def test_steps_and_tasks_are_in_the_jobs_one_grant(site):
    made, daemon = site
    script = f"srun --overlap -n2 --gres=shard:30 {SPIN} --alloc 1GiB --kernel-ns 200000 --seconds 60"
    job = made.submit("--gres=shard:30", "-n4", script=script)
    until(lambda: len(running(made, daemon, job)[str(job)]["processes"]) == 2, "both tasks join", 30)
    assert len(daemon.client.grants()) == 1
    until(lambda: daemon.books()["bytes"] > 2 * GIB, "both have their memory", 30)


def forged(made):
    """What scontrol says of a job that has the device."""
    return f"Nodes={made.host} CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:0)"


@pytest.fixture(scope="module")
def ended(cluster):
    """State and output of some jobs that were started together and have ended."""
    made, _, _ = cluster
    # Every user can read it there.
    example = shutil.copy(Path(__file__).parents[2] / "examples" / "slurm.sh", made.directory)
    jobs = {
        "example": made.submit(str(example), str(SPIN), "--alloc", "4GiB", "--seconds", "0"),
        "example without": made.submit("--gres=none", str(example), "echo", "started"),
        "memory": made.submit(
            "--gres=shard:10", "--comment=gpushare:memory=1GiB", script=f"{SPIN} --alloc 2GiB --seconds 0"
        ),
        "too much": made.submit("--gres=shard:10", "--comment=gpushare:memory=99GiB", script="echo started"),
        "plain": made.submit(script="env"),
        "name": made.submit(f"--job-name=x {forged(made)}", f"--wckey=x {forged(made)}", script="env"),
        "comment": made.submit(f"--comment={forged(made)}", script="env"),
        "state": made.submit("--gres=shard:10", "--job-name=x JobState=RUNNING", script="env"),
    }
    over = ("COMPLETED", "FAILED")
    until(lambda: all(made.state(job) in over for job in jobs.values()), "they end", 40)
    return {name: (made.state(job), made.out(job)) for name, job in jobs.items()}


def test_memory_is_held(ended):
    assert ended["memory"][0] == "COMPLETED"
    assert "CUDA_ERROR_OUT_OF_MEMORY" in ended["memory"][1]


def test_the_example(ended):
    """examples/slurm.sh, unchanged: it has 4 GiB and no more, where its shards alone would give 4.8. Without a share it
    says so and runs nothing."""
    state, out = ended["example"]
    assert state == "COMPLETED" and "CUDA_ERROR_OUT_OF_MEMORY" in out, out
    state, out = ended["example without"]
    assert state == "FAILED" and "this job has no share" in out and "started" not in out


def test_a_job_that_cannot_have_it_does_not_start_and_reports_why(site, ended):
    """Nor is the node drained for it."""
    made, daemon = site
    assert ended["too much"][0] == "FAILED"
    assert "does not fit" in ended["too much"][1]
    assert "started" not in ended["too much"][1]
    assert "DRAIN" not in made.scontrol("show", "node", made.host)
    assert daemon.client.grants() == []


@pytest.mark.parametrize("job", ["plain", "name", "comment"])
def test_a_job_without_shards_is_left_alone(ended, job):
    """Whatever its name or its comment says that it has."""
    state, out = ended[job]
    assert state == "COMPLETED"
    assert "GPUSHARE" not in out
    assert "LD_PRELOAD" not in out


def test_a_job_whose_name_states_that_it_runs_has_ended(cluster, ended):
    _, daemon, _ = cluster
    state, out = ended["state"]
    assert state == "COMPLETED" and "GPUSHARE" in out
    until(lambda: not daemon.client.grants(), "its grant ends with it", 30)


def array_of_three(made, daemon):
    """An array's tasks are jobs of their own: two have their shards, the third waits. The last one has the array's
    number, by which Slurm describes all of them; it too gets its own grant."""
    array = made.submit("--array=0-2", "--gres=shard:40", script=WORK)

    def task(number):
        """Returns the number and state of the task's job."""
        words = made.scontrol("show", "job", "--oneliner", f"{array}_{number}").split()
        answer = dict(word.partition("=")[::2] for word in words)
        return answer["JobId"], answer["JobState"]

    until(lambda: task(0)[1] == task(1)[1] == "RUNNING", "two tasks run")
    first, second = task(0)[0], task(1)[0]
    grants = running(made, daemon, first, second)
    assert [grants[job]["devices"][0]["time_milli"] for job in (first, second)] == [400, 400]
    assert task(2) == (str(array), "PENDING")
    made.cancel(f"{array}_0")
    assert first not in running(made, daemon, second, array)
    made.cancel(f"{array}_1")
    until(lambda: second not in running(made, daemon, array), "the end of the second")
    other = made.submit("--gres=shard:20", script=WORK)
    assert {str(array), str(other)} <= set(running(made, daemon, array, other)), "its prolog reaps none of them"
    made.cancel(array)
    made.cancel(other)


def test_cancelled_and_requeued_and_an_array(site):
    made, daemon = site
    job = made.submit("--gres=shard:20", "--requeue", script=WORK)
    before = running(made, daemon, job)[str(job)]
    made.scontrol("requeue", str(job))
    until(lambda: before["id"] not in [grant["id"] for grant in daemon.client.grants()], "its grant ends", 30)
    # Slurm waits for seconds before it starts the job again.
    array_of_three(made, daemon)
    again = running(made, daemon, job)[str(job)]
    assert again["key"] != before["key"]
    made.cancel(job)
    until(lambda: daemon.client.grants() == [], "the grant ends with it", 30)
    until(lambda: not list((daemon.layout.socket.parent / "slurm").glob("[0-9]*")), "and what its tasks were told", 20)


def test_a_job_for_which_room_is_made_waits(site, cluster):
    made, daemon = site
    room = cluster[2]
    room.is_made_after(3, 0.15)
    job = made.submit("--gres=shard:20", script=WORK)
    running(made, daemon, job)
    assert len(room.pauses) == 3 and min(room.pauses) >= 0.15
    made.cancel(job)


def test_a_job_whose_room_comes_too_late_is_queued_again(site, cluster):
    """Slurm starts it once more, and then it has its share. One that may not be queued again says why it ends."""
    made, daemon = site
    room = cluster[2]
    room.is_made_after(10**6, 2.0)
    job = made.submit("--gres=shard:20", "--requeue", script=WORK)
    once = made.submit("--gres=shard:20", "--no-requeue", script=WORK)
    until(lambda: "Restarts=1" in made.scontrol("show", "job", str(job)), "it is queued again", 80)
    until(lambda: made.state(once) == "FAILED", "the other ends", 80)
    assert "ask again in about 2.0 s; submit the job again" in made.out(once)
    room.is_there()
    assert "DRAIN" not in made.scontrol("show", "node", made.host)
    [grant] = running(made, daemon, job).values()
    assert grant["key"].endswith(f"/{job}/1/0")
    made.cancel(job)


def test_killed_beneath_it(site):
    """slurmd and the daemon are killed: the job runs on with its share, and a grant that no epilog ended is ended."""
    made, daemon = site
    job = made.submit("--gres=shard:30", script=WORK)
    grant = running(made, daemon, job)[str(job)]
    lost = daemon.client.create(memory=GIB, time=50, keep=True, key="slurm/gst/999999/0/0")
    made.kill_slurmd()
    daemon.kill()
    daemon.start()
    made.start_slurmd()
    assert running(made, daemon, job)[str(job)]["id"] == grant["id"]
    other = made.submit("--gres=shard:30", script=WORK)
    running(made, daemon, other)
    until(lambda: lost["id"] not in [one["id"] for one in daemon.client.grants()], "a job that Slurm forgot", 30)
    assert {grant["id"]} < {one["id"] for one in daemon.client.grants()}
