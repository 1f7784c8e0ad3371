/* The rule by which the processes of a grant share its memory, over the two shared pages. Nothing here knows about this
 * process's state: tests use it on pages of their own. */
#ifndef GPUSHARE_PAGE_H
#define GPUSHARE_PAGE_H

#include <stdint.h>

#include "page/gs_err.h"
#include "page/gs_page.h"

struct gs_pages {
  const struct gs_limits *limits;
  struct gs_usage *usage;
};

/* Takes bytes of the grant's memory for slot: 0, or -ENOMEM. No lock and no moment between a check and an act: a
 * process that dies at any instruction leaves at most its own announcement, which the daemon clears with the slot.
 * Callers of one process serialise per device. */
int gs_page_reserve(const struct gs_pages *pages, uint32_t slot, uint32_t device, uint64_t bytes);
void gs_page_give_back(const struct gs_pages *pages, uint32_t slot, uint32_t device, uint64_t bytes);
/* Bytes held by all processes of the grant. */
uint64_t gs_page_used(const struct gs_pages *pages, uint32_t device);

/* What a program is told of a device's memory, in CUDA and in NVML: total = withdrawn + used + free, whatever others do
 * meanwhile. */
struct gs_memory {
  uint64_t total;     /* as given: it never changes for a program that has seen it */
  uint64_t withdrawn; /* by a limit that was lowered since */
  uint64_t used;      /* by all processes of the grant; never more than what is left of total */
  uint64_t free;
};
struct gs_memory gs_page_memory(const struct gs_pages *pages, uint32_t device, uint64_t total);

#endif
