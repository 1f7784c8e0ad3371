"""Fields of the shared pages that only tests read."""

from gpushare._native import ffi, lib
from gpushare.binding.page_words import DeviceLimits, Managed
from gpushare.binding.pages import LimitsPage, UsagePage


def device_limits(page: LimitsPage) -> list[DeviceLimits]:
    """Indexed by device ordinal."""
    return [
        DeviceLimits(
            uuid=bytes(words.uuid),
            memory_bytes=words.memory_bytes,
            context_bytes=words.context_bytes,
            guarantee_milli=words.guarantee_milli,
            limit_milli=words.limit_milli,
        )
        for words in page.pointer.device[0 : page.ndevices]
    ]


def managed(page: LimitsPage) -> Managed:
    return Managed(page.pointer.managed)


def heartbeat(page: LimitsPage) -> int:
    return int(lib.gs_load32(ffi.addressof(page.pointer, "heartbeat")))


def memory_bytes(usage: UsagePage, limits: LimitsPage, ordinal: int) -> int:
    """Memory that all live processes hold on one device now."""
    return sum(usage.usage(slot.index, ordinal).memory_bytes for slot in usage.live_slots(limits))
