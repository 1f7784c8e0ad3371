"""A Slurm of one node on loopback: munged, slurmctld and slurmd from Debian, in a directory."""

import os
import shutil
import signal
import socket
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path

from run.running import alive
from run.waiting import until

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "scontrol")
NOBODY = 65534
SHARDS = 100  # per device

# cred_expire is short, because a requeued job waits for longer than that.
CONF = """\
ClusterName=gst
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={ctld_port}
SlurmdPort={slurmd_port}
AuthType=auth/munge
AuthInfo=socket={d}/munge.sock,cred_expire=5
CredType=cred/munge
SlurmctldPidFile={d}/ctld.pid
SlurmdPidFile={d}/slurmd.pid
StateSaveLocation={d}/state
SlurmdSpoolDir={d}/spool
SlurmctldLogFile={d}/ctld.log
SlurmdLogFile={d}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu,shard
SlurmdParameters=config_overrides
Prolog={d}/prolog
Epilog={d}/epilog
TaskProlog={d}/task-prolog
PrologFlags=Alloc
KillWait=1
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
MinJobAge=300
NodeName={host} NodeAddr=127.0.0.1 CPUs=16 RealMemory=1000 Gres=gpu:{count},shard:{shards}
PartitionName=p Nodes={host} Default=YES State=UP
"""


def missing() -> str | None:
    """The first of the programs that is not installed; None if all are."""
    return next((name for name in PROGRAMS if shutil.which(name, path=_path()) is None), None)


def _path() -> str:
    return f"{os.environ['PATH']}:/usr/sbin:/sbin"


def free_port() -> int:
    """A port of loopback that is free now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Slurm:
    """`count`: number of devices, whose nodes are made here. The caller puts prolog, epilog and task-prolog into
    `directory` before `start`."""

    def __init__(self, directory: Path, count: int) -> None:
        self.directory, self.host = directory, socket.gethostname().partition(".")[0]
        for name in ("state", "spool"):
            (directory / name).mkdir()
        values = {"d": directory, "host": self.host, "count": count, "shards": count * SHARDS}
        values |= {"ctld_port": free_port(), "slurmd_port": free_port()}
        (directory / "slurm.conf").write_text(CONF.format(**values))
        self.files = [directory / f"gpu{index}" for index in range(count)]
        for file in self.files:
            os.mknod(file, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        self.env = {**os.environ, "SLURM_CONF": str(directory / "slurm.conf"), "PATH": _path()}
        key = directory / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)

    def _run(self, *command: str | Path) -> None:
        done = subprocess.run([*map(str, command)], env=self.env, capture_output=True, text=True)
        assert done.returncode == 0, (command, done.stderr)

    def start(self) -> None:
        d = self.directory
        files = [f"--{name}-file={d}/munge.{name}" for name in ("pid", "log", "seed")]
        self._run("munged", "--force", f"--key-file={d}/munge.key", f"--socket={d}/munge.sock", *files)
        self._run("slurmctld", "-f", d / "slurm.conf")
        self.start_slurmd()

    def start_slurmd(self) -> None:
        self._run("slurmd", "-f", self.directory / "slurm.conf", "-N", self.host)
        until(lambda: "State=IDLE" in self.scontrol("show", "node", self.host).replace("MIXED", "IDLE"), "it is up", 30)

    def scontrol(self, *words: str) -> str:
        return subprocess.run(["scontrol", *words], env=self.env, capture_output=True, text=True).stdout

    def pid(self, name: str) -> int | None:
        try:
            return int((self.directory / f"{name}.pid").read_text())
        except (OSError, ValueError):
            return None

    def kill_slurmd(self) -> None:
        pid = self.pid("slurmd")
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        until(lambda: not alive(pid), "slurmd is gone", 20)

    def stop(self) -> None:
        subprocess.run(["scancel", "--state=RUNNING"], env=self.env)
        subprocess.run(["scancel", "--state=PENDING"], env=self.env)
        for name in ("slurmd", "ctld", "munge"):
            pid = self.pid(name)
            if pid is not None and alive(pid):
                os.kill(pid, signal.SIGTERM)
                until(lambda pid=pid: not alive(pid), f"{name} is gone", 30)

    def submit(self, *words: str, script: str = "", env: Mapping[str, str] | None = None) -> int:
        """Submits a batch job as user nobody; returns its id. `script`: its commands; if empty, the last words are a
        script file and its arguments."""
        as_user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        out = self.directory / "out-%j"
        command = [*as_user, "sbatch", "--parsable", "--open-mode=append", f"--output={out}", "--chdir=/", *words]
        wrapped = [f"--wrap={script}"] if script else []
        done = subprocess.run([*command, *wrapped], env={**self.env, **(env or {})}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    def state(self, job: int) -> str:
        words = ("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T")
        return subprocess.run(words, env=self.env, capture_output=True, text=True).stdout.strip()

    def out(self, job: int) -> str:
        path = self.directory / f"out-{job}"
        return path.read_text() if path.exists() else ""

    def logs(self) -> str:
        """The last lines that slurmctld and slurmd wrote, prologs and epilogs too."""
        return "\n".join((self.directory / name).read_text()[-4000:] for name in ("ctld.log", "slurmd.log"))

    def cancel(self, job: int | str) -> None:
        self._run("scancel", str(job))
