"""The parts of this machine that every container gets."""

from dataclasses import dataclass
from pathlib import Path

from gpushare.paths import HOOK, LIB_DIR, SIM_LIB_DIR


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A GPU's character device on the host, or the stand-in of a simulated one."""

    path: str
    major: int
    minor: int


@dataclass(frozen=True, slots=True)
class Granted:
    """A device of a grant: its UUID and its nodes."""

    id: str
    nodes: tuple[DeviceNode, ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """Filled once, when the daemon starts."""

    sim_dir: Path | None = None  # directory with sim.sock; None: the devices are real
    driver_files: tuple[Path, ...] = ()  # the real driver's libraries; not used on simulated devices
    driver_tools: tuple[Path, ...] = ()  # nvidia-smi, where the driver has it
    common_devices: tuple[DeviceNode, ...] = ()  # nvidiactl, nvidia-uvm, ...: every grant needs them
    lib_dir: Path = LIB_DIR
    sim_lib_dir: Path = SIM_LIB_DIR
    hook: Path = HOOK
    driver_version: str = ""  # as in 580.159.04; empty on simulated devices

    @property
    def simulated(self) -> bool:
        """Whether the devices are the simulator's."""
        return self.sim_dir is not None
