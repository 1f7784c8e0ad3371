/* The connection to the engine, for libcuda and libnvidia-ml. It needs nothing of the rest. */
#ifndef SIM_WIRE_H
#define SIM_WIRE_H

#include <stdbool.h>
#include <stdint.h>
#include "sim/wire/sim_proto.h"

enum { SIM_CUDA_VERSION = 13000 }; /* of both libraries */

struct sim_wire {
  int fd; /* -1: not connected */
  struct sim_hello hello;
};

/* 0, or a negative errno: -ENOENT no simulator to be found, -ECONNREFUSED nobody answers, -EPROTO not ours. */
int sim_wire_open(struct sim_wire *wire, enum sim_role role);
/* One request, one answer. Serialised by the caller. fds (may be NULL) receives nfds descriptors, -1 where none came. */
int sim_wire_call(struct sim_wire *wire, uint32_t op, uint32_t device, uint64_t a, uint64_t b, struct sim_reply *reply,
                  int *fds, int nfds);
/* The same with a descriptor sent along. */
int sim_wire_give(struct sim_wire *wire, uint32_t op, uint32_t device, uint64_t a, uint64_t b, int fd,
                  struct sim_reply *reply);
void sim_wire_close(struct sim_wire *wire);

#endif
