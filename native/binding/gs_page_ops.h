/* Operations on the two pages that Python cannot do itself: atomic access, futex wakes, checked initialisation, slot
 * assignment, and mappings that survive a tenant truncating its usage file. */
#ifndef GS_PAGE_OPS_H
#define GS_PAGE_OPS_H

#ifndef GS_CFFI
#include <stdint.h>
#include "page/gs_err.h"
#include "page/gs_page.h"
#include "page/gs_seats.h"
#endif

/* Loads are acquire, stores release. */
uint32_t gs_load32(const uint32_t *word);
uint64_t gs_load64(const uint64_t *word);
void gs_store32(uint32_t *word, uint32_t value);
void gs_store64(uint64_t *word, uint64_t value);
uint32_t gs_add32(uint32_t *word, uint32_t value); /* seq_cst; returns the new value */
int gs_futex_wake(uint32_t *word);                 /* wakes all waiters in any process; returns their number */
uint64_t gs_now_ns(void);                          /* CLOCK_MONOTONIC */

/* Bytes of one device that the processes of a grant hold, by their own words: *least without, *most with what is
 * announced and what calls in progress may take. */
void gs_page_held(const struct gs_limits *limits, struct gs_usage *usage, uint32_t device, uint64_t *least,
                  uint64_t *most);

/* Maps fd as shared memory, at the full size of its page. If the file is truncated later (a tenant can do that to its
 * usage file), this process is not killed by SIGBUS: once it accesses the lost part, the whole page reads as zeros, and
 * gs_page_torn returns 1. */
int gs_page_map(int fd, uint64_t size, int writable, void **out, struct gs_err *err);
void gs_page_unmap(void *page, uint64_t size);
int gs_page_torn(const void *page);

/* Initialise a new, zeroed page. magic is stored last, so that an incomplete page never passes its check. In a usage
 * page nothing after its first GS_USAGE_HEAD_BYTES is touched. */
enum { GS_USAGE_HEAD_BYTES = 64 };
int gs_limits_init(struct gs_limits *page, uint64_t size, const char *grant, uint32_t ndevices, uint32_t daemon_epoch,
                   struct gs_err *err);
int gs_usage_init(struct gs_usage *page, uint64_t size, const char *grant, struct gs_err *err);

/* Assigns the lowest free slot to the process pid. Returns -ENOSPC if all are taken. Only one thread may claim at a
 * time. */
int gs_slot_claim(struct gs_limits *limits, struct gs_usage *usage, struct gs_seats *seats, int32_t pid, uint32_t *slot,
                  uint32_t *generation, struct gs_err *err);
/* Restores a slot to the process that had it before a restart of the daemon; its words in the page are kept. since_ns:
 * when the process began. A slot that is taken or does not exist is left alone. */
void gs_seat_keep(struct gs_seats *seats, uint32_t slot, uint32_t generation, int32_t pid, uint64_t since_ns);

#endif
