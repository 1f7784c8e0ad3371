"""k0s: it writes its containerd's file anew whenever it starts, with what files of a directory beside it add."""

from pathlib import Path

MAIN = Path("/etc/k0s/containerd.toml")
_MARK = "# k0s_managed=true"


def advice(main: Path) -> str:
    """Returns how gpushare is configured there. It names the program, since its version decides the format."""
    return (
        f"gpushare runtime configure --engine containerd --config {main.parent}/containerd.d/gpushare.toml "
        "--executable-path /var/lib/k0s/bin/containerd"
    )


def refusal(path: Path, text: str) -> str:
    """Returns why a file with this text must be left alone, and what to do; empty if it is not one that k0s writes."""
    if _MARK not in text.splitlines():
        return ""
    return (
        f"{path} is left alone: k0s writes it anew while it has the line `{_MARK}`, with what the files in "
        f"{path.parent}/containerd.d add: `{advice(path)}`, or take that line out and keep the file yourself"
    )
