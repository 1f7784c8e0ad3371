/* The tenant socket: <grant dir>/grant.sock, AF_UNIX SOCK_SEQPACKET, one message each way, then the connection stays
 * open for the life of the process. Its end makes the daemon look (only a pidfd says that a process is gone) and tells the
 * process that the daemon is gone. The peer's pid comes from SO_PEERCRED, never from the message. */
#ifndef GS_WIRE_H
#define GS_WIRE_H

#ifndef GS_CFFI
#include <stdint.h>
#endif

enum { GS_JOIN_MAGIC = 0x67734a31 /* "gsJ1" */, GS_WIRE_VERSION = 1, GS_NO_SLOT = 0xffff };

enum gs_join_error { GS_JOIN_OK = 0, GS_JOIN_VERSION = 1, GS_JOIN_FULL = 2, GS_JOIN_REFUSED = 3, GS_JOIN_RELEASED = 4 };

/* slot and generation: GS_NO_SLOT and 0 at the first join; after a daemon restart, what the process held. */
struct gs_join_request {
  uint32_t magic, version, slot, generation;
};

/* On GS_JOIN_OK one descriptor comes with it (SCM_RIGHTS): an eventfd, the bell. The process writes 1 to it when a
 * thread starts to wait for a lease and when it has drained after a revoke. message is a NUL-terminated line for the
 * user. */
struct gs_join_reply {
  uint32_t magic, version, error, slot, generation;
  int32_t host_pid;
  char message[104];
};

#ifndef GS_CFFI
_Static_assert(sizeof(struct gs_join_request) == 16, "layout");
_Static_assert(sizeof(struct gs_join_reply) == 128, "layout");
#endif
#endif
