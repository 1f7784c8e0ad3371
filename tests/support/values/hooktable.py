"""hooks.tsv as the build reads it, with generated twin rows."""

import sys
from pathlib import Path

NATIVE = Path(__file__).resolve().parents[3] / "native"
sys.path[:0] = [str(NATIVE / "interposer" / "hooks"), str(NATIVE / "api")]
import gen_hooks  # noqa: E402 - sys.path is set above

ROWS = gen_hooks.read_rows()
