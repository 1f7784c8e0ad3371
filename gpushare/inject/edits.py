"""What a container gets for its grant; rendered as a CDI spec (cdi.py) or applied to an OCI config (oci.py)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpushare.inject import grantdir
from gpushare.inject.names import NAMED
from gpushare.inject.node import DeviceNode, Granted, Node
from gpushare.paths import (
    CONTAINER_DRIVER,
    CONTAINER_LIB,
    CONTAINER_NAMES,
    CONTAINER_SELF,
    INTERPOSERS,
    LOADER_CONFIG,
    SIM_SMI,
    Layout,
)

CDI_KIND = "gpushare.dev/gpu"
PRELOAD_FILE = "/etc/ld.so.preload"
_LOADER_CONFIG = "/etc/ld.so.conf.d/000-gpushare.conf"  # with it, an `ldconfig` in the container lists the driver
_TOOLS = "/usr/bin"  # in every image's PATH

# Seconds that an engine waits for a hook: longer than the hook's own timeout (GS_START_MS in hooks/node_api.h), so that
# the user sees the hook's message.
HOOK_TIMEOUT_S = 20


@dataclass(frozen=True, slots=True)
class Mount:
    """A bind mount. Order matters: a later one may sit inside an earlier one. `shows`: names of files in it that must
    not be covered by another mount."""

    host: str
    container: str
    writable: bool = False
    executable: bool = True
    optional: bool = False  # left out where the mount point cannot be made
    shows: tuple[str, ...] = ()

    @property
    def options(self) -> list[str]:
        """Mount options, as OCI and CDI spell them."""
        flags = ["rbind", "rprivate", "nosuid", "nodev"]
        return [*flags, *([] if self.executable else ["noexec"]), "rw" if self.writable else "ro"]


@dataclass(frozen=True, slots=True)
class Hook:
    """A command that the engine runs on the host. `timeout`: seconds."""

    stage: str  # the OCI key
    path: str
    args: list[str]
    timeout: int


@dataclass(frozen=True, slots=True)
class Edits:
    """`preload`: libraries, by their paths in the container. `env`: NAME=value. `devices`: the grant's device nodes.
    `driver_version`: the host's, as in node.Node."""

    grant: str
    mounts: list[Mount]
    hooks: list[Hook]
    preload: tuple[str, ...] = ()
    env: list[str] = field(default_factory=list)
    devices: list[DeviceNode] = field(default_factory=list)
    driver_version: str = ""


def container(layout: Layout, grant_id: str, node: Node, granted: Sequence[Granted] = ()) -> Edits:
    """Returns the edits for one grant."""
    own = grantdir.self_dir(layout, grant_id)
    mounts = [
        Mount(str(own), CONTAINER_SELF, executable=False, shows=("limits",)),
        Mount(str(own / "usage"), f"{CONTAINER_SELF}/usage", writable=True, executable=False),
    ]
    if node.sim_dir is not None:
        mounts.append(Mount(str(node.sim_lib_dir), CONTAINER_DRIVER))
        mounts.append(Mount(str(node.sim_dir), f"{CONTAINER_SELF}/sim", executable=False))
    else:
        mounts += [Mount(str(file), f"{CONTAINER_DRIVER}/{file.name}") for file in node.driver_files]
    return Edits(
        grant=grant_id,
        mounts=[*mounts, *_common(layout, grant_id, node)],
        hooks=[_hook(node.hook, grant_id, layout)],
        preload=grantdir.preloaded(node),
        env=list(_ENVIRONMENT),
        devices=_nodes(node, granted),
        driver_version=node.driver_version,
    )


def offer(layout: Layout, name: str, node: Node, devices: Sequence[Granted]) -> Edits:
    """Returns the edits of a CDI device without a grant: what its container gets in any case, and a hook that requests
    a share and places the rest (inject/placing.py).

    `name`: the CDI device's. `devices`: candidates for the share; the hook removes the nodes of the others.
    """
    own = Mount(str(grantdir.self_dir(layout, grantdir.STAND_IN)), CONTAINER_SELF, executable=False)
    return Edits(
        grant=name,
        mounts=[own, *_common(layout, grantdir.STAND_IN, node)],
        hooks=[_hook(node.hook, name, layout)],
        env=list(_ENVIRONMENT),
        devices=_nodes(node, devices),
    )


def _common(layout: Layout, grant_id: str, node: Node) -> list[Mount]:
    """Returns the mounts other than the grant's own directory and the driver."""
    tools = (node.sim_lib_dir / SIM_SMI,) if node.simulated else node.driver_tools
    return [
        *(Mount(str(tool), f"{_TOOLS}/{tool.name}", optional=True) for tool in tools),
        Mount(str(node.lib_dir), CONTAINER_LIB, shows=tuple(file.name for file in INTERPOSERS)),
        *(Mount(f"{node.lib_dir}/{file}", f"{CONTAINER_NAMES}/{name}") for name, file in NAMED.items()),
        Mount(f"{node.lib_dir}/{LOADER_CONFIG.name}", _LOADER_CONFIG, executable=False, optional=True),
        Mount(str(grantdir.preload_file(layout, grant_id)), PRELOAD_FILE, executable=False),
    ]


def _nodes(node: Node, devices: Sequence[Granted]) -> list[DeviceNode]:
    return [*node.common_devices, *(own for device in devices for own in device.nodes)]


_ENVIRONMENT = (
    # If the engine also runs NVIDIA's hook, the hook must not add devices that are not granted.
    "NVIDIA_VISIBLE_DEVICES=void",
    # Triton links what it compiles against the driver's file. The image's loader cache does not list it, and setting
    # LD_LIBRARY_PATH would replace the image's value, since CDI cannot extend a variable.
    f"TRITON_LIBCUDA_PATH={CONTAINER_NAMES}",
)


def _hook(path: Path, grant_id: str, layout: Layout) -> Hook:
    """Returns the only hook: it looks at what the container sees of its share, and mounts the rest. There is none for
    the end: a grant ends with its container's processes, since no engine reliably reports that."""
    args = [path.name, "place", "--grant", grant_id, "--socket", str(layout.socket)]
    return Hook("createRuntime", str(path), args, HOOK_TIMEOUT_S)
