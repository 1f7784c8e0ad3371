"""Usage in the columns of FOCUS 1.2, the FinOps Open Cost and Usage Specification (focus.finops.org): a line per day,
grant, device and kind of charge."""

import csv
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, TextIO

from gpushare import __version__
from gpushare.policy.usage.billing import Charge, Prices, charges

COLUMNS = (
    *("AvailabilityZone", "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency"),
    *(
        "BillingPeriodEnd",
        "BillingPeriodStart",
        "ChargeCategory",
        "ChargeClass",
        "ChargeDescription",
        "ChargeFrequency",
    ),
    *("ChargePeriodEnd", "ChargePeriodStart", "ConsumedQuantity", "ConsumedUnit", "ContractedCost", "EffectiveCost"),
    *("InvoiceIssuerName", "ListCost", "ListUnitPrice", "PricingQuantity", "PricingUnit", "ProviderName"),
    *("PublisherName", "RegionId", "ResourceId", "ResourceName", "ResourceType", "ServiceCategory", "ServiceName"),
    *("SkuId", "SubAccountId", "SubAccountName", "Tags"),
)
_DESCRIPTIONS = {
    "guaranteed": "GPU time that was asked for and granted",
    "extra": "GPU time of the tenant's guarantee that no grant has asked for",
    "borrowed": "GPU time that others left idle",
    "scavenged": "GPU time that no other tenant wanted",
    "memory": "GPU memory held",
    "hosted": "Host memory that GPU memory was moved to",
}


def write(out: TextIO, usage: Any, prices: Prices | None, node: str) -> None:
    """Writes CSV. `usage`: as answered with `by=charge`. `node`: its name, which is the billing account."""
    table = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    table.writeheader()
    table.writerows(_lines(usage, prices or Prices("XXX"), node))


def _lines(usage: Any, prices: Prices, node: str) -> Iterator[dict[str, str]]:
    for row in usage["rows"]:
        begins = datetime.fromtimestamp(row.get("begins_ns", 0) // 10**9, UTC)
        for charge in charges(row, prices):
            yield _line(row, charge, prices, begins, node)


def _line(row: Any, charge: Charge, prices: Prices, begins: datetime, node: str) -> dict[str, str]:
    cost, quantity = _decimal(charge.cost), _decimal(charge.quantity)
    month = begins.replace(day=1)
    following = (month + timedelta(days=32)).replace(day=1)
    return {
        "AvailabilityZone": "",
        "BilledCost": cost,
        "BillingAccountId": node,
        "BillingAccountName": node,
        "BillingCurrency": prices.currency,
        "BillingPeriodEnd": _time(following),
        "BillingPeriodStart": _time(month),
        "ChargeCategory": "Usage",
        "ChargeClass": "",
        "ChargeDescription": _DESCRIPTIONS[charge.what],
        "ChargeFrequency": "Usage-Based",
        "ChargePeriodEnd": _time(begins + timedelta(days=1)),
        "ChargePeriodStart": _time(begins),
        "ConsumedQuantity": quantity,
        "ConsumedUnit": charge.unit,
        "ContractedCost": cost,
        "EffectiveCost": cost,
        "InvoiceIssuerName": "gpushare",
        "ListCost": cost,
        "ListUnitPrice": _decimal(charge.price),
        "PricingQuantity": quantity,
        "PricingUnit": charge.unit,
        "ProviderName": "gpushare",
        "PublisherName": "gpushare",
        "RegionId": "",
        "ResourceId": f"{row.get('grant', '')}/{row.get('device', '')}",
        "ResourceName": row.get("grant", ""),
        "ResourceType": "GPU share",
        "ServiceCategory": "AI and Machine Learning",
        "ServiceName": f"gpushare {__version__}",
        "SkuId": f"gpu-{charge.what}",
        "SubAccountId": row.get("tenant", ""),
        "SubAccountName": row.get("tenant", ""),
        "Tags": "{}",
    }


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _decimal(value: Decimal) -> str:
    """Formats with at most twelve decimals, without trailing zeros."""
    text = f"{value:.12f}".rstrip("0").rstrip(".")
    return text or "0"
