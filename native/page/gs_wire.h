/* The tenant socket: <grant dir>/grant.sock, AF_UNIX SOCK_SEQPACKET. Each side sends one message, then the connection
 * stays open for the life of the process. When it closes, the process knows that the daemon has ended. The daemon then
 * checks the process: only its pidfd shows that it has ended. The peer's pid comes from SO_PEERCRED, never from the
 * message. */
#ifndef GS_WIRE_H
#define GS_WIRE_H

#ifndef GS_CFFI
#include <stdint.h>
#endif

enum { GS_JOIN_MAGIC = 0x67734a31 /* "gsJ1" */, GS_WIRE_VERSION = 1, GS_NO_SLOT = 0xffff };

/* In place of GS_JOIN_MAGIC in a request: a process that cannot open the usage page by its name, as in a sandbox that
 * has everything mounted read-only, asks for the page itself before it joins. Slot and generation are as at a first
 * join. The reply is one to a join, with the page, open for reading and writing, in place of the bell. */
enum { GS_PASS_MAGIC = 0x67735031 /* "gsP1" */ };

/* In place of GS_JOIN_MAGIC, with the slot and generation of a process that has joined. GS_SEGMENT: asks for a part of
 * the host pool, in a struct gs_segment_request; the reply carries a sealed memory file of exactly these bytes. With 0
 * bytes the process gives back all that it got; the reply carries nothing. GS_LOOK: the process's residency words in its
 * slot have changed, or it wants hosted memory back; a struct gs_join_request, and the reply carries nothing. */
enum { GS_SEGMENT_MAGIC = 0x67735331 /* "gsS1" */, GS_LOOK_MAGIC = 0x67734c32 /* "gsL2" */ };
enum { GS_SEGMENT_MOST = 1 << 30 /* bytes of one segment */ };

/* In place of GS_JOIN_MAGIC, from any process of the grant, which need not have joined: what the grant's programs say of
 * its memory, by themselves. slot is an enum gs_yield, generation 0; the reply carries nothing. IDLE: they do nothing now,
 * it may leave as if they had done nothing for long. NOW: it is to leave at once; it comes back with the next call that
 * needs it. BACK: it is to be on the device ahead of that call, if it is not held away. */
enum { GS_YIELD_MAGIC = 0x67735931 /* "gsY1" */ };
enum gs_yield { GS_YIELD_IDLE = 0, GS_YIELD_NOW = 1, GS_YIELD_BACK = 2 };

enum gs_join_error { GS_JOIN_OK = 0, GS_JOIN_VERSION = 1, GS_JOIN_FULL = 2, GS_JOIN_REFUSED = 3, GS_JOIN_RELEASED = 4 };

/* slot and generation are GS_NO_SLOT and 0 at the first join. After a restart of the daemon they are the process's
 * previous values. */
struct gs_join_request {
  uint32_t magic, version, slot, generation;
};

/* device: the ordinal in the grant. bytes: at most GS_SEGMENT_MOST, whole pages of 2 MiB. */
struct gs_segment_request {
  uint32_t magic, version, slot, generation;
  uint64_t bytes;
  uint32_t device, reserved;
};

/* On GS_JOIN_OK the reply carries one descriptor (SCM_RIGHTS): an eventfd, the bell. The process writes 1 to it when a
 * thread starts to wait for a lease and when the process has drained after a revoke. message is a NUL-terminated line
 * for the user. */
struct gs_join_reply {
  uint32_t magic, version, error, slot, generation;
  int32_t host_pid;
  char message[104];
};

#ifndef GS_CFFI
_Static_assert(sizeof(struct gs_join_request) == 16, "layout");
_Static_assert(sizeof(struct gs_segment_request) == 32, "layout");
_Static_assert(sizeof(struct gs_join_reply) == 128, "layout");
#endif
#endif
