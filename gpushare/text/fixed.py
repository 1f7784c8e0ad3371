"""Why memory of a grant that lends its idle memory stays on the device, in words."""

from collections.abc import Mapping

from gpushare.text.units import format_size

DRIVERS = "context"
"""What remains: contexts, code, stacks, and whatever else the driver takes for itself."""

_WORDS = {
    "small": "in blocks of up to 1MiB",
    "direct": "in rows wider than 64KiB, or for calls with 32-bit addresses",
    "pools": "in memory pools and graphs",
    "arrays": "in arrays",
    "managed": "managed",
    "mapped": "that it maps itself (cuMemCreate)",
    "exported": "that other processes or drivers may have",
    "synced": "prepared for a network card (SYNC_MEMOPS)",
    DRIVERS: "in contexts and code",
}


def fixed_in_words(fixed: Mapping[str, int]) -> str:
    """`2GiB in memory pools and graphs, 256MiB in contexts and code`: bytes by reason (GrantDevice.memory_fixed), the
    most first."""
    most_first = sorted(fixed.items(), key=lambda row: -row[1])
    return ", ".join(f"{format_size(size)} {_WORDS.get(reason, reason)}" for reason, size in most_first)
