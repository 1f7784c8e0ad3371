"""prices.toml: the price of a device hour, by kind of charge."""

import re
import tomllib
from decimal import Decimal
from pathlib import Path
from typing import Any

from gpushare.errors import UsageError
from gpushare.paths import PRICES
from gpushare.policy.usage.billing import Prices

DEFAULT = PRICES
_KEYS = ("guaranteed", "borrowed", "scavenged", "memory_gib")
_CURRENCY = re.compile(r"[A-Z]{3}")
PRICE_MAX = Decimal(1_000_000)
_PARSER_PLACE = re.compile(r" \(at line (\d+), column \d+\)")


def load(path: Path | None) -> Prices | None:
    """Returns the prices in `path`. Without `path`, reads the default file, or returns None if it is unreadable or sets
    no prices. Raises UsageError with file and line."""
    file = path or DEFAULT
    try:
        text = file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        if path is None:
            return None
        raise UsageError(f"{file}: there is no such file") from None
    except OSError as error:
        if path is None:
            return None
        raise UsageError(f"{file}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{file}: {error}") from None
    try:
        found = tomllib.loads(text, parse_float=Decimal)
    except tomllib.TOMLDecodeError as error:
        place = _PARSER_PLACE.search(str(error))
        raise UsageError(f"{file}{f':{place[1]}' if place else ''}: {_PARSER_PLACE.sub('', str(error))}") from None
    # The default file as installed sets nothing: no prices.
    return _prices(found, file, text) if found or path is not None else None


def _prices(found: dict[str, Any], file: Path, text: str) -> Prices:
    def wrong(key: str, why: str) -> UsageError:
        lines = [n for n, line in enumerate(text.splitlines(), 1) if re.match(rf"\s*\[?{re.escape(key)}\b", line)]
        return UsageError(f"{file}{f':{lines[0]}' if lines else ''}: {why}")

    for key in found:
        if key not in ("currency", *_KEYS):
            raise wrong(key, f"unknown {key!r}: there are currency, {', '.join(_KEYS)}")
    currency = found.get("currency")
    if not isinstance(currency, str) or not _CURRENCY.fullmatch(currency):
        raise wrong("currency", f"currency is {str(currency)[:40]!r}: give three letters, as EUR")
    prices = {}
    for key in _KEYS:
        value = found.get(key, 0)
        number = isinstance(value, int | Decimal) and not isinstance(value, bool) and Decimal(value).is_finite()
        if not number or not 0 <= value <= PRICE_MAX:
            raise wrong(key, f"{key} is {str(value)[:40]!r}: give a price from 0 to {PRICE_MAX}")
        prices[key] = Decimal(value)
    return Prices(currency, **prices)
