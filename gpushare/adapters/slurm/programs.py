"""Prolog and epilog, which slurmd calls as root, once per job and node. Each may be called again, or never."""

import contextlib
import fcntl
import logging
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpushare.adapters.slurm import conf, job
from gpushare.client import Client
from gpushare.errors import FailedError, GpushareError, LaterError, NotFoundError, UnreachableError

log = logging.getLogger(__name__)

Json = dict[str, Any]

_SECONDS = 20  # timeout for slurmctld's answer
WAIT_SECONDS = 20.0
"""Maximum wait while room is made, and for a daemon that is restarting."""
_AGAIN_SECONDS = 0.5
_BEGUN = ("RUNNING", "CONFIGURING")
_FORGOTTEN = "forgotten"
_RUN = "# run "  # with the run's number, the first line of the file that a prolog writes
_ENDED = (
    "COMPLETED",
    "CANCELLED",
    "FAILED",
    "TIMEOUT",
    "NODE_FAIL",
    "PREEMPTED",
    "BOOT_FAIL",
    "DEADLINE",
    "OUT_OF_MEMORY",
)


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FailedError(f"{' '.join(command)}: {error}") from None
    if done.returncode:
        raise FailedError(f"{' '.join(command)}: {done.stderr.strip() or f'status {done.returncode}'}")
    return done.stdout


def scontrol(*words: str) -> str:
    """Runs scontrol and returns its output. Raises FailedError."""
    return _run("scontrol", *words)


def squeue(job_id: str, fields: str) -> str:
    """Returns fields of a job, or of all tasks of an array, as squeue prints them. Raises FailedError."""
    return _run("squeue", "--noheader", "--states=all", f"--jobs={job_id}", f"--format={fields}")


def _listed(job_id: str) -> tuple[str, str]:
    """Returns the name by which a job alone is asked for, and its state. For the id of an array Slurm lists all its
    tasks. None of these fields is a user's text. Raises FailedError."""
    for line in squeue(job_id, "%A %F %K %T").splitlines():
        words = line.split()
        if len(words) == 4 and words[0] == job_id:
            _, array, task, state = words
            return f"{array}_{task}" if task.isdecimal() else job_id, state
    raise FailedError(f"squeue does not list job {job_id}")


def described(job_id: str) -> str:
    """Returns what Slurm shows of a job and of its devices. Raises FailedError."""
    alone, _ = _listed(job_id)
    name, wckey = (squeue(alone, field).removesuffix("\n") for field in ("%j", "%w"))
    return job.by_slurm(scontrol("show", "job", "--details", "--oneliner", alone), name, wckey)


def hosts(names: str) -> Sequence[str]:
    """Expands a host list into names."""
    return scontrol("show", "hostnames", names).split()


def patiently(work: Callable[[], Any]) -> Any:
    """Retries `work` for up to WAIT_SECONDS while the daemon is unreachable: it may be restarting."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            return work()
        except UnreachableError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_AGAIN_SECONDS)


def _state(job_id: str) -> str:
    """Returns a job's state as Slurm names it, `_FORGOTTEN`, or empty if slurmctld does not answer."""
    try:
        return _listed(job_id)[1]
    except FailedError as error:
        return _FORGOTTEN if "Invalid job id" in str(error) else ""


def _queue_again(job_id: str) -> str:
    """Puts a job for which there will be room soon back into the queue, from which Slurm starts it again. Returns what
    its tasks print, if they start at all before Slurm ends them."""
    try:
        scontrol("requeue", _listed(job_id)[0])
    except FailedError as error:
        log.info("job %s is not queued again: %s", job_id, error)
        return "submit the job again"
    return "the job is queued again"


class Programs:
    """The prolog and epilog. `directory`: where a prolog writes a file for its job's tasks. `per_device`: shards."""

    def __init__(self, daemon: Client, directory: Path, per_device: int) -> None:
        self._daemon, self._directory, self._per_device = daemon, directory, per_device

    def prolog(self, asked: job.Job, node: str) -> None:
        """Makes the job's grant. If it is refused, the job's tasks print the reason and do not start, and a job that
        can have it later is queued again; the prolog itself succeeds, since a failing prolog would drain the node.

        Raises FailedError or UnreachableError if the node is at fault.
        """
        held = job.has(described(asked.id), node, hosts)
        if not held:
            return
        try:
            binding = patiently(lambda: self._grant(asked, held))
            text = conf.task(binding["env"], binding.get("unset", ()))
        except UnreachableError:
            raise
        except GpushareError as error:
            self._release(asked)
            why = f"{error}; {_queue_again(asked.id)}" if isinstance(error, LaterError) else str(error)
            log.warning("job %s: %s", asked.id, why)
            text = conf.refusal(why)
        self._write(asked, text)
        with contextlib.suppress(GpushareError):
            self.reap()

    def _grant(self, asked: job.Job, held: list[job.Has]) -> dict[str, Any]:
        if len(held) > 1:
            raise FailedError("a job has whole GPUs or shards of one, not both: ask for one kind")
        tenants = [tenant["name"] for tenant in self._daemon.tenants()]
        [wanted] = job.requests(asked, held, self._daemon.devices(), tenants, self._per_device)
        self._release(asked, but=wanted["key"])  # of a run of the same job whose epilog was not called
        grant = self._daemon.create(**wanted, wait_seconds=WAIT_SECONDS)
        return dict(self._daemon.bind(grant["id"], "process", uid=asked.uid, gid=asked.gid))

    def epilog(self, asked: job.Job) -> None:
        """Ends the job's grants, and what is left of its processes in them."""
        # Seen before Slurm is asked: what a run makes that begins meanwhile is not this epilog's.
        seen = max(self._run_told(asked.id), *patiently(lambda: self._runs(asked)))
        if _state(asked.id).startswith(_BEGUN):
            # The job was requeued and has begun again before this epilog of its last run: slurmd already gives the
            # number of the new run.
            asked = replace(asked, restarts=asked.restarts - 1)
        asked = replace(asked, restarts=min(asked.restarts, seen))
        patiently(lambda: self._release(asked))
        self._forget(asked.id, asked.restarts)

    def _runs(self, asked: job.Job) -> list[int]:
        """The runs of the job that have grants, and -1."""
        keys = [grant["key"] or "" for grant in self._daemon.grants()]
        return [-1, *(job.run_of(key) for key in keys if key.startswith(asked.keys))]

    def reap(self) -> list[str]:
        """Ends grants of jobs that have ended without an epilog on this node; returns their ids."""
        done = []
        for grant in self._daemon.grants():
            of = job.job_of(grant["key"] or "")
            if of is not None and _state(of).startswith((*_ENDED, _FORGOTTEN)):
                self._end(grant["id"])
                self._forget(of, job.run_of(grant["key"] or ""))
                done.append(str(grant["id"]))
        return done

    def _release(self, asked: job.Job, but: str = "") -> None:
        for grant in self._daemon.grants():
            if asked.began_by_now(grant["key"] or "") and grant["key"] != but:
                self._end(grant["id"])

    def _end(self, grant_id: str) -> None:
        with contextlib.suppress(NotFoundError):
            self._daemon.release(grant_id)

    def _write(self, asked: job.Job, text: str) -> None:
        """Writes the file for the job's tasks atomically: they source it as shell."""
        self._directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        found = self._directory.lstat()
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise FailedError(f"{self._directory} is not ours alone to write: remove it")
        fresh = self._directory / f".{asked.id}"
        with self._alone():
            fresh.write_text(f"{_RUN}{asked.restarts}\n{text}")
            fresh.chmod(0o644)
            fresh.rename(self._directory / asked.id)

    def _forget(self, job_id: str, run: int) -> None:
        """Removes the file for a job's tasks if it is of this run or an earlier one."""
        with contextlib.suppress(FileNotFoundError), self._alone():
            if -1 < self._run_told(job_id) <= run:
                (self._directory / job_id).unlink()

    def _run_told(self, job_id: str) -> int:
        """The run that the file for a job's tasks is of; -1: there is none."""
        try:
            first = (self._directory / job_id).read_text().partition("\n")[0]
        except FileNotFoundError:
            return -1
        return int(first.removeprefix(_RUN))

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Excludes other prologs and epilogs that write or remove files."""
        with open(self._directory / ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
