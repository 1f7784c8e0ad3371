"""What a group is given: the stage, its durations, and where its rows go."""

import importlib.util
import json
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from gpubench.config import Config, MissingError
from gpubench.stage import Stage
from gpubench.stats import Spread, number

Item = TypeVar("Item")
_SIMULATED_SCALE, _SIMULATED_SECONDS = 0.02, 0.12
_LEAST_REPEATS = 3
"""A spread of fewer shows nothing."""


def _found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:  # raised for the package that it would be in
        return False


class Context:
    def __init__(self, config: Config) -> None:
        self.stage = Stage(config)
        self.simulated = config.simulated
        self.scale = config.scale

    def seconds(self, seconds: float) -> float:
        """How long to measure; a fraction on the simulated device, where only the programs are tested."""
        return max(_SIMULATED_SECONDS, seconds * _SIMULATED_SCALE) if self.simulated else seconds * self.scale

    def some(self, items: Sequence[Item], simulated: int = 1) -> list[Item]:
        """All of them, or the first few on the simulated device."""
        return list(items[:simulated] if self.simulated else items)

    def repeats(self, count: int) -> int:
        return 2 if self.simulated else min(count, max(_LEAST_REPEATS, round(count * self.scale)))

    def has(self, *modules: str) -> bool:
        """Whether these Python packages can be used; they need a real GPU."""
        missing = [module for module in modules if not _found(module)]
        if missing and not self.simulated:
            self.skip(f"needs Python's {', '.join(missing)}")
        return not missing and not self.simulated

    @contextmanager
    def item(self, name: str) -> Iterator[None]:
        """One of several measurements of a group: its failure is recorded, and the others go on."""
        try:
            yield
        except MissingError as reason:
            self._emit(skip=f"{name}: {reason}")
            self._emit(unable=str(reason))
        except Exception as error:
            traceback.print_exc()
            self._emit(broken=f"{name}: {type(error).__name__}: {error}")

    # Rows.

    def _emit(self, **message: Any) -> None:
        print(json.dumps(message), flush=True)

    def skip(self, reason: str) -> None:
        """Records something that this group does not measure on this machine."""
        self._emit(skip=reason)

    def row(
        self,
        name: str,
        value: float | Spread | None,
        unit: str = "",
        *,
        against: str = "",
        text: str = "",
        values: Mapping[str, float] | None = None,
        limit: float | None = None,
        judged: float | None = None,
    ) -> None:
        """`value` None: `text` has it. `values`: the numbers behind the text. `limit`: the target; it is met where
        `judged`, or the value where that is not given, is no greater."""
        spread = value if isinstance(value, Spread) else None
        plain = value.median if isinstance(value, Spread) else value
        row = {
            "name": name,
            "value": plain,
            "unit": unit,
            "low": spread.low if spread else None,
            "high": spread.high if spread else None,
            "n": spread.n if spread else None,
            "against": against,
            "text": text,
            "values": dict(values or {}),
            "limit": limit,
            "judged": plain if judged is None else judged,
        }
        self._emit(row=row)
        shown = text if plain is None else f"{number(plain)} {unit}"
        print(f"  {name}: {shown} {f'(against {against})' if against else ''}", file=sys.stderr, flush=True)

    def compare(
        self, name: str, unit: str, values: Mapping[str, float], *, against: str = "", limit: float | None = None
    ) -> None:
        """One row of several numbers of one kind. `limit`: gpushare's target."""
        text = ", ".join(f"{key} {number(value)}" for key, value in values.items())
        self.row(
            name,
            None,
            unit,
            against=against,
            text=f"{text} {unit}".strip(),
            values=values,
            limit=limit if "gpushare" in values else None,
            judged=values.get("gpushare"),
        )
