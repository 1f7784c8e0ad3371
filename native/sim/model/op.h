/* Work, as it is given to streams and kept by graphs.
 *
 * An op's run() is called with sim_lock held. Never call sim_submit, sim_stream_wait or sim_ctx_wait with another lock
 * held. */
#ifndef SIM_OP_H
#define SIM_OP_H

#include "sim/model/process.h"

enum sim_resource {
  SIM_COMPUTE,    /* kernels, fills, copies inside a device: needs the device's time */
  SIM_COPY_IN,    /* host to device engine: runs in parallel with compute, wall time */
  SIM_COPY_OUT,   /* device to host engine */
  SIM_INSTANT,    /* takes no time: event record, value write, marker, free in stream order */
  SIM_HOST,       /* a host function, run by the worker thread */
  SIM_WAIT_EVENT, /* stream.c and graph.c only */
  SIM_WAIT_VALUE  /* polled by the worker thread */
};

enum { SIM_NODE_NONE = -1, SIM_PAYLOAD_MAX = 512 };

/* One piece of work, by value: copied by sim_submit and by graph nodes (a node runs its copy at every launch). */
struct sim_op {
  enum sim_resource resource;
  uint64_t duration_ns; /* device time for SIM_COMPUTE, wall time for copies, else 0 */
  /* The data effect, at completion, in stream order, with sim_lock held; may be NULL. Must not wait and must not call
   * CUDA. On SIM_WAIT_VALUE `ready` is polled instead. */
  void (*run)(void *payload);
  bool (*ready)(const void *payload);
  /* On SIM_COMPUTE, may be NULL: asked from when the device comes to it. Until it says true the kernel spins; then it
   * takes duration_ns. As run. */
  bool (*meet)(void *payload);
  /* Graph node kind when captured (CUgraphNodeType); what cuGraph*NodeGetParams answers is derived from the payload by
   * graph.c for the kinds it knows. SIM_NODE_NONE: cannot be captured (STREAM_CAPTURE_UNSUPPORTED). */
  int node_type;
  size_t payload_bytes; /* <= SIM_PAYLOAD_MAX */
  const void *payload;
  /* Filled by makers of ops for graph queries: parameters as the API gives them (CUDA_MEMCPY3D,
   * CUDA_MEMSET_NODE_PARAMS...), NULL if none; copied too. */
  const void *params;
  size_t params_bytes; /* <= SIM_PAYLOAD_MAX */
};

/* Runs a host function; params stays the caller's until the op is submitted. */
struct sim_op sim_host_op(const CUDA_HOST_NODE_PARAMS *params);
/* Adds a cost of the device to a copy: latency of one transfer plus bytes over the link, in ns. */
uint64_t sim_copy_ns(uint64_t bytes);
/* The same for work inside the device (fills, device to device): 20 times the link's rate. */
uint64_t sim_fill_ns(uint64_t bytes);

#endif
