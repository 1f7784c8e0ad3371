"""Comparing with a file of the expected JSON. GPUSHARE_UPDATE_GOLDEN=1 writes it instead."""

import json
import os
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "golden"


def check(name: str, value: Any) -> None:
    path = HERE / name
    if os.environ.get("GPUSHARE_UPDATE_GOLDEN"):
        path.write_text(json.dumps(value, indent=2) + "\n")
    assert value == json.loads(path.read_text())
