/* A unit of work, as submitted to streams and stored in graphs.
 *
 * run() is called with sim_lock held. Never call sim_submit, sim_stream_wait or sim_ctx_wait with another lock held. */
#ifndef SIM_OP_H
#define SIM_OP_H

#include "sim/model/process.h"

struct sim_ctx;

enum sim_resource {
  SIM_COMPUTE,    /* kernels, fills, copies within a device: needs device time */
  SIM_COPY_IN,    /* host-to-device copy engine: parallel to compute, takes wall time */
  SIM_COPY_OUT,   /* device-to-host copy engine */
  SIM_FRONT,      /* a memory barrier: the stream waits, the device computes for others */
  SIM_INSTANT,    /* takes no time: event record, value write, marker, stream-ordered free */
  SIM_HOST,       /* a host function, run by the worker thread */
  SIM_WAIT_EVENT, /* stream.c and graph.c only */
  SIM_WAIT_VALUE  /* polled by the worker thread */
};

enum { SIM_NODE_NONE = -1, SIM_PAYLOAD_MAX = 512 };

/* One piece of work, passed by value. sim_submit and graph nodes copy it; a node runs its copy at every launch. */
struct sim_op {
  enum sim_resource resource;
  uint64_t duration_ns; /* device time for SIM_COMPUTE, wall time for copies, else 0 */
  /* Moves the data, at completion, in stream order, with sim_lock held; may be NULL. Must not wait and must not call
   * CUDA. For SIM_WAIT_VALUE, `ready` is polled instead. */
  void (*run)(void *payload);
  bool (*ready)(const void *payload);
  /* For SIM_COMPUTE; may be NULL. Polled from the time the device reaches the kernel. The kernel spins until it returns
   * true and then takes duration_ns. The same restrictions as for run apply. */
  bool (*meet)(void *payload);
  /* For SIM_COMPUTE; may be NULL. Called when the device starts the kernel, under the same restrictions. */
  void (*begin)(void *payload);
  uint64_t bytes; /* SIM_COPY_IN, SIM_COPY_OUT: that it moves over the link */
  bool pageable;  /* from or to memory of the host that is not pinned */
  bool barrier;   /* SIM_COMPUTE: waits for a time slice, computes nothing and is not charged */
  /* Conditional handle that a kernel changes; takes effect when the kernel is submitted in a graph. 0: none. */
  uint64_t condition;
  bool counts;       /* true: decrements the handle's value; false: sets it to `value` */
  unsigned value;    /* new value of the handle */
  uint64_t launches; /* executable graph that a kernel launches; takes effect at submission. 0: none */
  /* Graph node type when captured (CUgraphNodeType). graph.c derives the results of cuGraph*NodeGetParams from the
   * payload for the types it knows. SIM_NODE_NONE: cannot be captured (STREAM_CAPTURE_UNSUPPORTED). */
  int node_type;
  size_t payload_bytes; /* <= SIM_PAYLOAD_MAX */
  const void *payload;
  /* For graph queries: the parameters as the API gives them (CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS...), or NULL.
   * Copied like the payload. */
  const void *params;
  size_t params_bytes; /* <= SIM_PAYLOAD_MAX */
};

/* For run and begin: the context whose work it is, not a green one; and what it does when it uses memory that is not
 * there. The context is unusable from then on, and its later work does nothing. */
const struct sim_ctx *sim_effect_ctx(void);
void sim_effect_illegal(void);
bool sim_effect_sound(void); /* false: the context has a fault, so its copies move nothing */

/* Runs a host function. params must stay valid until the op is submitted. */
struct sim_op sim_host_op(const CUDA_HOST_NODE_PARAMS *params);
/* Duration of a copy between host and device in ns if it is alone: latency of one transfer plus bytes over the link's
 * rate, or over the rate of pageable memory, in bytes per us. */
uint64_t sim_copy_ns(uint64_t bytes, bool pageable);
uint64_t sim_pageable_rate(void);

#endif
