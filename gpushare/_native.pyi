"""gpushare._native: made by native/binding from the headers in native/, for inject and those above it."""

from typing import Any, Protocol

class FFI(Protocol):
    NULL: Any
    def new(self, cdecl: str, init: Any = ...) -> Any: ...
    def cast(self, cdecl: str, value: Any) -> Any: ...
    def addressof(self, cdata: Any, *fields: str | int) -> Any: ...
    def string(self, cdata: Any, maxlen: int = ...) -> bytes: ...
    def from_buffer(self, cdecl: str, buffer: Any) -> Any: ...
    def unpack(self, data: Any, length: int) -> Any: ...
    def buffer(self, cdata: Any, size: int = ...) -> Any: ...
    def sizeof(self, cdecl: Any) -> int: ...
    def memmove(self, dest: Any, src: Any, n: int) -> None: ...

class Lib(Protocol):
    GS_ESCAPE_ALLOC: int
    GS_ESCAPE_FREE: int
    GS_ESCAPE_HEAP: int
    GS_ESCAPE_DUP: int
    GS_ESCAPE_XFER: int
    GS_GUARD_OVER: int
    GS_GUARD_HIDDEN: int
    GS_GUARD_CHANGED: int
    GS_GUARD_UNRECORDED: int
    GS_GUARD_LEFT: int
    GS_STEP_DIRECTORY: int
    GS_STEP_TMPFS: int
    GS_STEP_FILE: int
    GS_STEP_REPLACE: int
    GS_STEP_SYMLINK: int
    GS_STEP_OWNER: int
    GS_STEP_UNMOUNT: int
    GS_STEP_UNLINK: int
    GS_STEP_RMDIR: int
    GS_STEP_READABLE: int
    GS_USAGE_HEAD_BYTES: int
    GS_ARBITER_MAX_GRANTS: int
    GS_ARBITER_MAX_DEVICES: int
    GS_LATENCY_BUCKETS: int
    GS_ARBITER_EVENTS: int
    GS_MAX_DEVICES: int
    GS_MAX_SLOTS: int
    GS_GRANT_ID_BYTES: int
    GS_PAGE_VERSION: int
    GS_LIMITS_MAGIC: int
    GS_USAGE_MAGIC: int
    GS_GRANT_RESERVED: int
    GS_GRANT_ACTIVE: int
    GS_MANAGED_CHARGE: int
    GS_MANAGED_REFUSE: int
    GS_GRANT_SUSPENDED: int
    GS_GRANT_RELEASED: int
    GS_SLOT_FREE: int
    GS_SLOT_LIVE: int
    GS_SLOT_DEPENDENT: int
    GS_LEASE_HELD: int
    GS_TRACE_RINGS: int
    GS_TRACE_EVENTS: int
    GS_CLASS_INTERACTIVE: int
    GS_CLASS_INFERENCE: int
    GS_CLASS_TRAINING: int
    GS_EVENT_LEASE: int
    GS_EVENT_REVOKE: int
    GS_EVENT_HANDOVER: int
    GS_EVENT_WAKE: int
    GS_EVENT_LATE: int
    GS_EVENT_BESIDE: int
    GS_EVENT_DRAINED: int
    GS_EVENT_LEFT: int
    GS_EVENT_LIE: int
    GS_WORD_STATE: int
    GS_WORD_GENERATION: int
    GS_WORD_PID: int
    GS_WORD_MEMORY: int
    GS_WORD_BUSY: int
    GS_WORD_QUEUE_END: int
    GS_WORD_LAUNCHES: int
    GS_WORD_COLLECTIVES: int
    GS_WORD_WAITING: int
    GS_WORD_INFLIGHT: int
    GS_RULE_NONE: int
    GS_RULE_IDLE: int
    GS_RULE_SLEEPING: int
    GS_RULE_GONE: int
    GS_RULE_UNUSED: int
    GS_RULE_LIMIT: int
    GS_RULE_WAKE: int
    GS_RULE_GUARANTEE: int
    GS_RULE_TIER: int
    GS_RULE_TERM: int
    GS_RULE_EXCESS: int
    GS_RULE_GANG: int
    GS_RULE_ENDED: int
    GS_RULE_FREE: int
    GS_RULE_ROOM: int
    GS_LEVEL_NONE: int
    GS_LEVEL_GUARANTEE: int
    GS_LEVEL_SLACK: int
    GS_LEVEL_SURPLUS: int
    GS_RECEIPT_WOKE: int
    GS_RECEIPT_RUNNING: int
    GS_SHARE_GANG: int
    GS_SHARE_BESIDE: int
    GS_JOIN_MAGIC: int
    GS_WIRE_VERSION: int
    GS_NO_SLOT: int
    GS_JOIN_OK: int
    GS_JOIN_VERSION: int
    GS_JOIN_FULL: int
    GS_JOIN_REFUSED: int
    GS_JOIN_RELEASED: int

    def gs_guard_open(self, layout: Any, out: Any, err: Any) -> int: ...
    def gs_guard_close(self, guard: Any) -> None: ...
    def gs_guard_attach(self, guard: Any, err: Any) -> int: ...
    def gs_guard_detach(self, guard: Any) -> None: ...
    def gs_guard_set_layout(self, guard: Any, layout: Any, err: Any) -> int: ...
    def gs_guard_limit(self, guard: Any, cgroup: int, limit: Any, err: Any) -> int: ...
    def gs_guard_books(self, guard: Any, cgroup: int, books: Any, err: Any) -> int: ...
    def gs_guard_forget(self, guard: Any, cgroup: int) -> None: ...
    def gs_guard_events_fd(self, guard: Any) -> int: ...
    def gs_guard_events(self, guard: Any, out: Any, count: int) -> int: ...
    def gs_guard_settle(self, guard: Any, err: Any) -> int: ...
    def gs_guard_try(self, layout: Any, procs: int, fd: int, cmd: int, size: int, status: Any, err: Any) -> int: ...
    def gs_load32(self, word: Any) -> int: ...
    def gs_load64(self, word: Any) -> int: ...
    def gs_store32(self, word: Any, value: int) -> None: ...
    def gs_store64(self, word: Any, value: int) -> None: ...
    def gs_add32(self, word: Any, value: int) -> int: ...
    def gs_futex_wake(self, word: Any) -> int: ...
    def gs_now_ns(self) -> int: ...
    def gs_files_change(self, directory: bytes, steps: Any, count: int, err: Any) -> int: ...
    def gs_page_map(self, fd: int, size: int, writable: int, out: Any, err: Any) -> int: ...
    def gs_page_unmap(self, page: Any, size: int) -> None: ...
    def gs_page_torn(self, page: Any) -> int: ...
    def gs_page_held(self, limits: Any, usage: Any, device: int, least: Any, most: Any) -> None: ...
    def gs_limits_init(self, page: Any, size: int, grant: bytes, ndevices: int, daemon_epoch: int, err: Any) -> int: ...
    def gs_usage_init(self, page: Any, size: int, grant: bytes, err: Any) -> int: ...
    def gs_trace_area(self, kind: int) -> Any: ...
    def gs_trace_text(self, kind: int) -> Any: ...
    def gs_limits_check(self, page: Any, size: int, err: Any) -> int: ...
    def gs_usage_check(self, page: Any, size: int, err: Any) -> int: ...
    def gs_slot_claim(
        self, limits: Any, usage: Any, seats: Any, pid: int, slot: Any, generation: Any, err: Any
    ) -> int: ...
    def gs_seat_keep(self, seats: Any, slot: int, generation: int, pid: int, since_ns: int) -> None: ...
    def gs_arbiter_create(self, out: Any, config: Any, err: Any) -> int: ...
    def gs_arbiter_defaults(self, config: Any) -> None: ...
    def gs_arbiter_destroy(self, arbiter: Any) -> None: ...
    def gs_arbiter_grant_add(
        self,
        arbiter: Any,
        limits: Any,
        usage: Any,
        seats: Any,
        devices: Any,
        ndevices: int,
        share: Any,
        bell: int,
        grant: Any,
        err: Any,
    ) -> int: ...
    def gs_arbiter_grant_share(self, arbiter: Any, grant: int, share: Any, err: Any) -> int: ...
    def gs_arbiter_grant_remove(self, arbiter: Any, grant: int, err: Any) -> int: ...
    def gs_arbiter_slot_clear(self, arbiter: Any, grant: int, slot: int, err: Any) -> int: ...
    def gs_arbiter_grant_stats(self, arbiter: Any, grant: int, device: int, out: Any, err: Any) -> int: ...
    def gs_arbiter_device_stats(self, arbiter: Any, device: int, out: Any, err: Any) -> int: ...
    def gs_arbiter_events(self, arbiter: Any, after: Any, out: Any, n: int) -> int: ...
    def gs_arbiter_newest_event(self, arbiter: Any) -> int: ...

ffi: FFI
lib: Lib
