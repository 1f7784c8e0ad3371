"""OCI bundles without an image: the container's root is the host's /usr and /lib*, bound read-only."""

import json
from pathlib import Path
from typing import Any

from gpushare.paths import CONTAINER_LIB

TENANT_PROGRAM = f"{CONTAINER_LIB}/gpushare-spin"

# The host directories that a dynamically linked program needs. Symlinks (merged /usr) stay symlinks.
_HOST_DIRECTORIES = ("usr", "lib", "lib32", "lib64", "libx32", "bin", "sbin")
_MOUNT_POINTS = ("proc", "dev", "etc", "run", "tmp")


def make(bundle: Path, annotations: dict[str, str], arguments: list[str], cgroup: str) -> None:
    """Writes `bundle`. The program gets no capabilities, and a network namespace without an interface."""
    root = bundle / "rootfs"
    root.mkdir(parents=True)
    for name in _MOUNT_POINTS:
        (root / name).mkdir()
    binds = []
    for name in _HOST_DIRECTORIES:
        host = Path("/") / name
        if host.is_symlink():
            (root / name).symlink_to(host.readlink())
        elif host.is_dir():
            (root / name).mkdir()
            binds.append(name)
    (bundle / "config.json").write_text(json.dumps(_config(binds, annotations, arguments, cgroup), indent=2))


def _config(binds: list[str], annotations: dict[str, str], arguments: list[str], cgroup: str) -> dict[str, Any]:
    mounts: list[dict[str, Any]] = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=64k"]},
        {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev", "size=1m"]},  # noqa: S108
    ]
    for name in binds:
        options = ["rbind", "ro", "rprivate"]
        mounts.append({"destination": f"/{name}", "type": "bind", "source": f"/{name}", "options": options})
    return {
        "ociVersion": "1.0.2",
        "root": {"path": "rootfs", "readonly": True},
        "hostname": "gpushare-demo",
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "cwd": "/",
            "args": arguments,
            "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
            "noNewPrivileges": True,
            "capabilities": {kind: [] for kind in ("bounding", "effective", "permitted")},
        },
        "mounts": mounts,
        "annotations": annotations,
        "linux": {
            "cgroupsPath": cgroup,
            "namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts", "network")],
            "resources": {"devices": [{"allow": False, "access": "rwm"}]},
        },
    }
