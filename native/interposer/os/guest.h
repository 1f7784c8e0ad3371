/* Services that need only libc. */
#ifndef GPUSHARE_GUEST_H
#define GPUSHARE_GUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zeroed anonymous memory that is zeroed again in a forked child. NULL if out of memory. */
void *gs_private_map(size_t bytes);

/* A lock for memory of gs_private_map: 0 is unlocked, so a forked child never inherits a held lock. Not recursive. */
void gs_lock(uint32_t *lock);
void gs_unlock(uint32_t *lock);

/* Prints one line on stderr, prefixed "gpushare: ", unless that would block or stderr is closed. At most 20 lines per
 * process; preserves errno. */
__attribute__((format(printf, 1, 2))) void gs_say(const char *format, ...);
/* The same for debugging output that the user asked for (GPUSHARE_DEBUG), without a limit on the number of lines. */
__attribute__((format(printf, 1, 2))) void gs_debug(const char *format, ...);

uint64_t gs_now(void); /* CLOCK_MONOTONIC of the host, ns: the daemon's clock */
/* To be called before the first use of gs_now in a process: its clock may be ahead of the host's (page/gs_clock.h). */
void gs_clock_find(void);
/* To be called before the first CUDA call does anything: what is stderr then stays stderr. */
void gs_stderr_find(void);
/* Waits while *word == value, at most timeout_ns (0: no limit). shared: other processes map the word, too. Preserves
 * errno. False on timeout. */
bool gs_futex_wait(const uint32_t *word, uint32_t value, uint64_t timeout_ns, bool shared);
void gs_futex_wake(const uint32_t *word, int count, bool shared);
/* To be called after a wait for a lease word to leave `value` was woken: wakes other waiters for the same change, since
 * the arbiter wakes few. gs_futex_wait does this for shared words. */
void gs_futex_pass_on(const uint32_t *word, uint32_t value);

#endif
