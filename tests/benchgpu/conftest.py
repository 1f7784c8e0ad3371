"""The GPU benchmark's package is no part of the wheel: it is found where it lies."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench" / "gpu"))
