/* Services of the process that need nothing but libc. */
#ifndef GPUSHARE_GUEST_H
#define GPUSHARE_GUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zeroed anonymous memory that a fork's child sees zeroed again. NULL when the system has none. */
void *gs_private_map(size_t bytes);

/* A lock for gs_private_map memory: 0 is unlocked, so a fork's child never inherits a held one. Not recursive. */
void gs_lock(uint32_t *lock);
void gs_unlock(uint32_t *lock);

/* One line on stderr, prefixed "gpushare: ". At most 20 lines per process; errno is kept. */
__attribute__((format(printf, 1, 2))) void gs_say(const char *format, ...);
/* The same for a person who asked for it (GPUSHARE_DEBUG): as many lines as there are. */
__attribute__((format(printf, 1, 2))) void gs_debug(const char *format, ...);

uint64_t gs_now(void); /* CLOCK_MONOTONIC, ns */
/* Waits while *word == value, at most timeout_ns (0: for ever). shared: the word is in a page of another process too.
 * Keeps errno. False on timeout. */
bool gs_futex_wait(const uint32_t *word, uint32_t value, uint64_t timeout_ns, bool shared);
void gs_futex_wake(const uint32_t *word, int count, bool shared);

#endif
