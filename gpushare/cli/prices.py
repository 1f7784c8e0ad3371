"""prices.toml: the price of a device hour, by kind of charge."""

import os
import re
from decimal import Decimal
from pathlib import Path

from gpushare.errors import UsageError
from gpushare.paths import PRICES
from gpushare.policy.usage.billing import Prices
from gpushare.text import toml

_KEYS = ("guaranteed", "extra", "borrowed", "scavenged", "memory_gib", "hosted_gib")
_CURRENCY = re.compile(r"[A-Z]{3}")
PRICE_MAX = Decimal(1_000_000)


def load(path: Path | None) -> Prices | None:
    """Returns the prices in `path`. Without `path`, reads the default file, or returns None if it is unreadable or sets
    no prices. Raises UsageError with file and line."""
    if path is None and not os.access(PRICES, os.R_OK):
        return None
    try:
        file = toml.read(path or PRICES, parse_float=Decimal)
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such file") from None
    # The default file as installed sets nothing: no prices.
    return _prices(file) if file.values or path is not None else None


def _prices(file: toml.File) -> Prices:
    found = file.values

    def wrong(key: str, why: str) -> UsageError:
        return UsageError(f"{file.place(key)}: {why}")

    for key in found:
        if key not in ("currency", *_KEYS):
            raise wrong(key, f"unknown {key!r}: there are currency, {', '.join(_KEYS)}")
    currency = found.get("currency")
    if not isinstance(currency, str) or not _CURRENCY.fullmatch(currency):
        raise wrong("currency", f"currency is {str(currency)[:40]!r}: give three letters, as EUR")
    prices = {}
    for key in _KEYS:
        value = found.get(key, found.get("guaranteed", 0) if key == "extra" else 0)
        number = isinstance(value, int | Decimal) and not isinstance(value, bool) and Decimal(value).is_finite()
        if not number or not 0 <= value <= PRICE_MAX:
            raise wrong(key, f"{key} is {str(value)[:40]!r}: give a price from 0 to {PRICE_MAX}")
        prices[key] = Decimal(value)
    return Prices(currency, **prices)
