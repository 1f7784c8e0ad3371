"""Two jobs of two ranks each on two devices: the ranks of a job run at the same time, and stop at the same
collective."""

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from run import built
from run.running import Daemon

MS = 1_000_000
LEASE = 20 * MS
COMPUTE, COLLECTIVE, ROUNDS = 700_000, 200_000, 400
LIMIT_S = 60

pytestmark = [pytest.mark.timeout(3 * LIMIT_S), pytest.mark.xdist_group("timing")]


@pytest.fixture(scope="module")
def program() -> Path:
    return built.program("ranks")


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(daemon: Daemon, program: Path) -> Iterator[Start]:
    made: list[subprocess.Popen[str]] = []

    def job(*mode: object) -> "subprocess.Popen[str]":
        words = [mode[0], "-", 0, len(made) + 1, 2, *mode[1:]]
        command = daemon.run("512MiB", "50%", program, *map(str, words), devices="2")
        made.append(
            subprocess.Popen(command, env=daemon.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        )
        return made[-1]

    yield job
    for process in made:
        if process.poll() is None:
            process.kill()
        process.wait()


def ended(jobs: "Sequence[subprocess.Popen[str]]") -> list[list[dict[str, int]]]:
    """The output of each rank of each job."""
    return [list(map(json.loads, job.communicate(timeout=LIMIT_S)[0].splitlines())) for job in jobs]


@pytest.mark.parametrize("many", [pytest.param(1, marks=pytest.mark.slow), 8])
def test_two_jobs_of_two_ranks(daemon: Daemon, start: Start, many: int, exact: bool) -> None:
    mode = ("job", COMPUTE, COLLECTIVE, many, ROUNDS // many)
    (alone,) = ended([start(*mode)])
    before = [daemon.books(device)["busy_ns"] for device in (0, 1)]
    both = ended([start(*mode), start(*mode)])
    assert [len(job) for job in [alone, *both]] == [2, 2, 2]
    wall, worst = (max(rank[key] for rank in alone) for key in ("wall_ns", "worst_ns"))
    for name, job in zip(("first", "second"), both, strict=True):
        print(name, [f"{r['wall_ns'] / wall:.2f} times alone, worst {r['worst_ns'] / MS:.1f} ms" for r in job])
    work = 2 * ROUNDS * (COMPUTE + COLLECTIVE)
    for device in (0, 1):
        busy = daemon.books(device)["busy_ns"] - before[device]
        print(f"device {device}: {busy / work:.2f} of the work without waiting")
        assert busy < 1.6 * work  # at least twice the work if devices are leased separately
    for job in both:
        for rank in job:
            assert rank["wall_ns"] < 3 * wall
            # a lease of the other job and its undrained work; a rank that gets no processor keeps its job waiting
            assert rank["worst_ns"] < worst + (5 if exact else 40) * (LEASE + 5 * MS)


@pytest.mark.slow
def test_one_process_on_both_devices_beside_two(daemon: Daemon, start: Start) -> None:
    """Neither of them starves."""
    mode = (COMPUTE, COLLECTIVE, 4, ROUNDS // 4)
    jobs = [start("both", *mode), start("job", *mode)]
    for job in ended(jobs):
        print([f"{rank['wall_ns'] / MS:.0f} ms, worst {rank['worst_ns'] / MS:.1f} ms" for rank in job])
        for rank in job:
            assert rank["wall_ns"] < LIMIT_S * 1000 * MS
