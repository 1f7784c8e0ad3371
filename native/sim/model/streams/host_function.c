/* Host functions and callbacks in stream order. */
#include "sim/model/model.h"

static void run_host_function(void *payload) {
  CUDA_HOST_NODE_PARAMS *host = payload;
  host->fn(host->userData);
}

struct sim_op sim_host_op(const CUDA_HOST_NODE_PARAMS *params) {
  return (struct sim_op){.resource = SIM_HOST,
                         .run = run_host_function,
                         .node_type = CU_GRAPH_NODE_TYPE_HOST,
                         .payload = params,
                         .payload_bytes = sizeof *params,
                         .params = params,
                         .params_bytes = sizeof *params};
}

static CUresult launch_host(CUstream handle, CUhostFn fn, void *data) {
  struct sim_stream *stream;
  CUresult result = sim_stream_get(handle, &stream);
  if (result)
    return result;
  if (fn == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  CUDA_HOST_NODE_PARAMS params = {fn, data};
  struct sim_op op = sim_host_op(&params);
  sim_spin(sim_hello.launch_ns);
  return sim_submit(stream, &op);
}
CUresult cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void *userData) { return launch_host(hStream, fn, userData); }

/* The sync mode (how the thread waits for the next function, blocking or spinning) is ignored. */
CUresult cuLaunchHostFunc_v2(CUstream hStream, CUhostFn fn, void *userData, unsigned int syncMode) {
  return syncMode > 1 ? CUDA_ERROR_INVALID_VALUE : launch_host(hStream, fn, userData);
}

struct callback {
  CUstreamCallback function;
  CUstream stream;
  void *data;
};

static void run_callback(void *payload) {
  struct callback *callback = payload;
  callback->function(callback->stream, CUDA_SUCCESS, callback->data);
}

static CUresult add_callback(CUstream handle, CUstreamCallback function, void *data, unsigned flags) {
  struct sim_stream *stream;
  CUresult result = sim_stream_get(handle, &stream);
  if (result)
    return result;
  if (function == NULL || flags)
    return CUDA_ERROR_INVALID_VALUE;
  struct callback callback = {function, handle, data};
  struct sim_op op = {.resource = SIM_HOST,
                      .run = run_callback,
                      .node_type = SIM_NODE_NONE,
                      .payload = &callback,
                      .payload_bytes = sizeof callback};
  sim_spin(sim_hello.launch_ns);
  return sim_submit(stream, &op);
}
CUresult cuStreamAddCallback(CUstream hStream, CUstreamCallback callback, void *userData, unsigned int flags) {
  return add_callback(hStream, callback, userData, flags);
}
