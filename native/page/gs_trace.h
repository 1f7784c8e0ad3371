/* Recent events of a process, for fault diagnosis: one ring per process in the usage page of its grant.
 *
 * The process writes its ring (interposer/process/trace.c). The daemon reads it for `gpushare grant debug`, and events
 * are printed to stderr if GPUSHARE_DEBUG names their area. No decision depends on the contents, and they are not
 * trusted. */
#ifndef GS_TRACE_H
#define GS_TRACE_H

#ifndef GS_CFFI
#include <stdint.h>
#endif

/* X(NAME, area, text): text is a printf format for a and b, both unsigned long long. Times: ns, sizes: bytes. */
/* clang-format off */
#define GS_TRACE_KINDS(X) \
  X(JOINED, "process", "joined the grant in slot %llu, generation %llu") \
  X(REJOINED, "process", "joined again: daemon epoch %llu, slot %llu") \
  X(DAEMON_LOST, "process", "the daemon's heartbeat stopped at %llu: %llu milli of time from now on, from the local budget") \
  X(CONTEXT_MADE, "memory", "a context was made, charged %llu: this process now holds %llu bytes") \
  X(CONTEXT_ENDED, "memory", "a context ended: this process held %llu bytes, now %llu without the context's own") \
  X(NO_ROOM, "memory", "out of memory: %llu bytes were asked for, the grant has %llu left") \
  X(OVERDRAWN, "memory", "the driver took %llu bytes that were not reserved: this process now holds %llu") \
  X(MOVED, "memory", "its memory was to move: outcome %llu, %llu bytes are in host memory now") \
  X(MOVE_FAILED, "memory", "the driver refused a step of the move with error %llu, %llu bytes are in host memory then") \
  X(STAYED_AWAY, "memory", "out of memory: %llu ms were waited for the grant's memory, %llu bytes of this process are in host memory") \
  X(WAITED, "gate", "waited %llu ns for the lease, its word is now %llu") \
  X(BOUND, "gate", "waited %llu ns for work in flight to fall under %llu ns") \
  X(STUCK, "gate", "a stream does not move: after %llu ns its launches pass the bound, %llu ns apart") \
  X(REVOKED, "gate", "the lease was taken back (word %llu) with %llu ns of work in flight") \
  X(DRAINED, "gate", "drained for lease word %llu, %llu ns after it was taken back") \
  X(CAPTURE_BEGAN, "capture", "a stream capture began, %llu are open (stream %llu)") \
  X(CAPTURE_ENDED, "capture", "a stream capture ended, %llu are open (stream %llu)")

/* clang-format on */
enum gs_trace_kind {
  GS_TRACE_NONE = 0,
#define GS_TRACE_MEMBER(name, area, text) GS_TRACE_##name,
  GS_TRACE_KINDS(GS_TRACE_MEMBER)
#undef GS_TRACE_MEMBER
      GS_TRACE_COUNT
};

struct gs_trace_event {
  uint64_t time_ns; /* CLOCK_MONOTONIC */
  uint32_t kind;    /* enum gs_trace_kind; 0 while the event is being written, set last */
  int32_t device;   /* device ordinal; -1: no device */
  uint64_t a, b;    /* meaning depends on kind; see GS_TRACE_KINDS */
};

/* 2 KiB. The processes in the first GS_TRACE_RINGS slots of a grant have one ring each. */
struct gs_trace_ring {
  uint64_t count;      /* events written so far; the newest is event[(count - 1) % 63] */
  uint32_t generation; /* generation of the slot whose process writes here */
  uint8_t reserved[20];
  struct gs_trace_event event[63]; /* GS_TRACE_EVENTS */
};
enum { GS_TRACE_RINGS = 32, GS_TRACE_EVENTS = 63 };

/* The name of the area and the printf format of the text; NULL if kind is not in GS_TRACE_KINDS. */
const char *gs_trace_area(uint32_t kind);
const char *gs_trace_text(uint32_t kind);

#endif
