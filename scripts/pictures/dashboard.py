"""Pictures of the dashboard for docs/guides/dashboard.md, with its own simulated node, on which real processes share
two devices for a while. Run as `.venv/bin/python scripts/pictures/dashboard.py`."""

import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from run.running import Daemon  # noqa: E402
from views.browser import chromium, opened  # noqa: E402 - not in the installed package
from views.dashboards import dashboard  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"
BYTES_MAX = 120_000
WORK_SECONDS = 150
"""Long enough for several columns in the chart of the last hour."""
TENANTS = {"research": "100%", "research/vision": "60%", "class": "50%", "batch": "0%"}
# Device, memory, time, tenant, and percent of each 20 ms in which it works; an idle one lends.
WORK = (
    ("0", "4GiB", "40%", "research", 100),
    ("0", "2GiB", "30%", "class", 20),
    ("0", "1GiB", "0", "batch", 100),
    ("1", "6GiB", "60%", "research/vision", 60),
    ("1", "1GiB", "0", "batch", 100),
    ("1", "3GiB", "20%", "class", 0),
)


def make(seconds: float = WORK_SECONDS) -> list[Path]:
    """Makes the pictures; returns the files written."""
    with tempfile.TemporaryDirectory(prefix="gsp-") as short, ExitStack() as stack:
        daemon = Daemon(Path(short, "d"), "2x16GiB")
        stack.callback(daemon.stop)
        daemon.start()
        work(daemon, stack)
        time.sleep(seconds)
        return pictures(daemon)


def work(daemon: Daemon, stack: ExitStack) -> None:
    """Starts what the pictures show; it ends with the stack."""
    for name, share in TENANTS.items():
        daemon.client.set_tenant(name, {"time": share})
    for device, memory, share, tenant, percent in WORK:
        one = daemon.spin(memory, share, gpu=device, tenant=tenant)
        stack.callback(one.kill)
        one.tell(f"alloc {int(memory.removesuffix('GiB')) * 700}MiB")
        if percent:
            one.tell(f"run 500000 {percent}")


def pictures(daemon: Daemon) -> list[Path]:
    PICTURES.mkdir(exist_ok=True)
    found = []
    with dashboard("--socket", str(daemon.layout.socket)) as board, chromium() as browser:
        for scheme in ("light", "dark"):
            size = {"width": 1000, "height": 760}
            with opened(browser, board.url, color_scheme=scheme, viewport=size) as page:
                page.locator("#wait-list li").first.wait_for()
                page.locator("#device-tenants li").first.wait_for()
                time.sleep(8)  # several samples of the last second
                path = PICTURES / f"dashboard-{scheme}.png"
                page.screenshot(path=path)
                found.append(path)
                if path.stat().st_size > BYTES_MAX:
                    sys.exit(f"{path} has {path.stat().st_size} bytes, {BYTES_MAX} at most")
    return found


if __name__ == "__main__":
    for made in make():
        print(made.relative_to(ROOT))
