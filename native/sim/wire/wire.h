/* The connection to the engine, for libcuda and libnvidia-ml. It is independent of the rest of the simulator. */
#ifndef SIM_WIRE_H
#define SIM_WIRE_H

#include <stdbool.h>
#include <stdint.h>
#include "sim/wire/sim_proto.h"

enum { SIM_CUDA_VERSION = 13000 }; /* reported by both libraries */

struct sim_wire {
  int fd; /* -1: not connected */
  struct sim_hello hello;
};

/* Connects and sends SIM_HELLO. 0 or a negative errno: -ENOENT: no simulator found, -ECONNREFUSED: nobody answers,
 * -EPROTO: the peer does not speak this protocol. */
int sim_wire_open(struct sim_wire *wire, enum sim_role role);
/* Sends one request and receives its answer; the caller serialises calls. fds (may be NULL) receives nfds descriptors,
 * -1 where there is none. */
int sim_wire_call(struct sim_wire *wire, uint32_t op, uint32_t device, uint64_t a, uint64_t b, struct sim_reply *reply,
                  int *fds, int nfds);
/* As sim_wire_call, and sends a descriptor with the request (-1: none). */
int sim_wire_give(struct sim_wire *wire, uint32_t op, uint32_t device, uint64_t a, uint64_t b, int fd,
                  struct sim_reply *reply, int *fds, int nfds);
void sim_wire_close(struct sim_wire *wire);

#endif
