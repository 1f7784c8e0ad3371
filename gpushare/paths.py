"""Where things are: run-time paths of one daemon (all follow `--state-dir`) and the files that the wheel installs."""

import functools
import os
from pathlib import Path

SOCKET_ENV = "GPUSHARE_SOCKET"
GRANT_DIR_ENV = "GPUSHARE_GRANT_DIR"
SIM_DIR_ENV = "GPUSHARE_SIM_DIR"
PARENT_ENV = "GPUSHARE_RUN_PARENT"  # to `gpushare run` by ssh: the pid of the session with whose end it is to end
DEFAULT_SOCKET = Path("/run/gpushare/node.sock")
LOCK = "daemon.lock"  # in the run-time directory, next to the socket; stays when the daemon has ended
PRICES = Path("/etc/gpushare/prices.toml")

CONTAINER_DIR = "/run/gpushare"  # what a container gets is mounted here
CONTAINER_SELF = f"{CONTAINER_DIR}/self"  # a container's view of its grant directory
CONTAINER_DRIVER = f"{CONTAINER_SELF}/driver"  # the real or simulated driver's libraries
CONTAINER_COMPAT = f"{CONTAINER_SELF}/compat"  # a newer driver of the image's own, where it has one
CONTAINER_LIB = f"{CONTAINER_DIR}/lib"  # a container's view of LIB_DIR
CONTAINER_NAMES = f"{CONTAINER_DIR}/names"  # the interposer under the names of the driver's files

# What a plain process of root sees of its grant, in a mount namespace of its own; elsewhere an empty directory.
PROCESS_SELF = "/run/gpushare/own"

LIB_DIR = Path(__file__).parent / "_lib"
INTERPOSER = LIB_DIR / "libgpushare.so"  # SONAME libcuda.so.1
INTERPOSER_ML = LIB_DIR / "libgpushare-ml.so"  # SONAME libnvidia-ml.so.1
# In the order in which a program preloads them. The last two are the first two under the names without a version.
INTERPOSERS = (INTERPOSER, INTERPOSER_ML, LIB_DIR / "libgpushare-name.so", LIB_DIR / "libgpushare-ml-name.so")
SIM_LIB_DIR = LIB_DIR / "sim"  # libcuda.so.1, libnvidia-ml.so.1, libcudart, libcublas
SIM_TOOLS = "bin"  # in SIM_LIB_DIR: programs of the simulated driver
SIM_SMI = f"{SIM_TOOLS}/nvidia-smi"
# Replace CUDA libraries that programs bring themselves, which need private tables of a real driver. In SIM_LIB_DIR.
SIM_RUNTIMES = tuple(
    f"lib{name}.so.{major}" for major in (13, 12) for name in ("cudart", "cublas", "cublasLt", "cupti")
)
SIM_BINARY = LIB_DIR / "gpushare-sim"
HOOK = LIB_DIR / "gpushare-hook"
PROBE = LIB_DIR / "gpushare-probe"  # tries the walls
YIELD = LIB_DIR / "gpushare-yield"  # says for a share whether its memory is needed
RUNTIME_WRAPPER = LIB_DIR / "gpushare-runtime"
LOADER_CONFIG = LIB_DIR / "ld.so.conf"
PACKAGING = LIB_DIR / "packaging"  # what `gpushare install` puts in place
MONITORING = LIB_DIR / "monitoring"  # alerts and a dashboard, for whoever runs Prometheus and Grafana
SPIN_PTX = LIB_DIR / "spin.ptx"
WORDS_PTX = LIB_DIR / "words.ptx"


def in_memory(path: Path) -> bool:
    """Whether the file system is tmpfs where the path is, or will be once it is made."""
    existing = path
    while not existing.exists():
        existing = existing.parent
    device = existing.stat().st_dev
    with open("/proc/self/mountinfo", errors="replace") as mounts:  # paths may be any bytes
        for line in mounts:
            fields, _, rest = line.partition(" - ")
            major, minor = fields.split()[2].split(":")
            if os.makedev(int(major), int(minor)) == device:
                return rest.split()[0] in ("tmpfs", "ramfs")
    return False


@functools.cache
def _grants(run: Path) -> Path:
    """Decided once: a later mount must not move the grants of a living daemon."""
    if in_memory(run):
        return run / "grants"
    import hashlib  # here, since a client starts often and does not need it

    name = hashlib.sha256(str(run).encode()).hexdigest()[:12]
    return Path("/dev/shm") / f"gpushare-{name}"  # noqa: S108 - owner and mode are checked where it is made


class Layout:
    """Run-time paths of one daemon. `/run/gpushare`, `/var/lib/gpushare` and `/var/run/cdi` without a state dir.
    Objects compare by identity, as they are keys of caches."""

    def __init__(self, run: Path, state: Path, cdi: Path, socket: Path) -> None:
        self.run, self.state, self.cdi, self.socket = run, state, cdi, socket

    @classmethod
    def of(cls, state_dir: Path | None = None, socket: Path | None = None) -> "Layout":
        """`state_dir`: root of all paths, instead of the system's directories. `socket`: instead of the default one."""
        if state_dir is None:
            run, state, cdi = Path("/run/gpushare"), Path("/var/lib/gpushare"), Path("/var/run/cdi")
        else:
            state_dir = state_dir.absolute()
            run, state, cdi = state_dir / "run", state_dir, state_dir / "cdi"
        return cls(run, state, cdi, socket or run / "node.sock")

    @property
    def grants(self) -> Path:
        """Parent of the grant directories: on tmpfs wherever there is one, since shared pages must not be written back
        to a disk."""
        return _grants(self.run)

    @property
    def cgroups(self) -> Path:
        """Links, one for each plain process's grant, to the cgroup that was made for it below its caller's own."""
        return self.run / "cgroups"

    @property
    def names(self) -> Path:
        """Links to the interposer under the names of the driver's files, for plain processes (inject/names.py)."""
        return self.run / "names"

    @property
    def sim(self) -> Path:
        """Directory of the simulator's socket."""
        return self.run / "sim"

    @property
    def ledger(self) -> Path:
        """The SQLite file."""
        return self.state / "ledger.db"


def client_socket(option: str | None = None) -> Path:
    """The socket a client talks to: the option, else GPUSHARE_SOCKET, else the default."""
    return Path(option or os.environ.get(SOCKET_ENV) or DEFAULT_SOCKET)
