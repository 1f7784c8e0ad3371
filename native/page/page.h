/* How the processes of a grant share its memory, implemented over the two shared pages. This code uses no process
 * state, so tests can run it on pages of their own. */
#ifndef GPUSHARE_PAGE_H
#define GPUSHARE_PAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "page/gs_err.h"
#include "page/gs_page.h"

struct gs_pages {
  const struct gs_limits *limits;
  struct gs_usage *usage;
};

/* Reserves bytes of the grant's memory for slot. Returns 0; -ENOMEM if they do not fit; -EAGAIN (only if not patient)
 * if they may fit once other processes have decided their announcements or finished calls in progress; a patient caller
 * waits for that, but at most PATIENCE_NS (page.c). The algorithm takes no lock and has no window between check and
 * update: a process that dies at any instruction leaves at most its own announcement, which the daemon clears with the
 * slot. Callers in one process must serialise per device. */
int gs_page_reserve(const struct gs_pages *pages, uint32_t slot, uint32_t device, uint64_t bytes, bool patient);
/* Releases bytes that gs_page_reserve reserved. */
void gs_page_give_back(const struct gs_pages *pages, uint32_t slot, uint32_t device, uint64_t bytes);
/* Like gs_page_reserve, for a call in progress that takes at most `bytes`: others wait for its end before they are
 * refused, and do not see the bytes as used. */
int gs_page_grow(const struct gs_pages *pages, uint32_t slot, uint32_t device, uint64_t bytes, bool patient);
/* Ends such a call, or a part of it: of `bytes`, `taken` stay reserved and the rest is released. */
void gs_page_grown(const struct gs_pages *pages, uint32_t slot, uint32_t device, uint64_t bytes, uint64_t taken);
/* Bytes that count against the limit: held by all processes of the grant, and uncharged. */
uint64_t gs_page_used(const struct gs_pages *pages, uint32_t device);
/* Bytes held by all processes of the grant: *least without, *most with what is announced and what calls in progress may
 * take. */
void gs_page_span(const struct gs_pages *pages, uint32_t device, uint64_t *least, uint64_t *most);

/* Device memory as reported to a program through CUDA and NVML. total = withdrawn + used + free holds even while other
 * processes allocate. */
struct gs_memory {
  uint64_t total;     /* as first reported: constant for a program that has seen it */
  uint64_t withdrawn; /* removed because the limit was lowered since */
  uint64_t used;      /* by all processes of the grant, charged or not; at most total - withdrawn */
  uint64_t free;
};
/* total: device memory in bytes, as first reported to the program. */
struct gs_memory gs_page_memory(const struct gs_pages *pages, uint32_t device, uint64_t total);

#endif
