/* Writing values to memory and waiting for values in stream order. */
#include "sim/memory/memory.h"
#include "sim/model/model.h"

struct value {
  void *host;
  uint64_t value;
  unsigned flags;
  bool wide; /* 64-bit value */
};

static bool value_ready(const void *payload) {
  const struct value *wait = payload;
  if (!sim_memory_present(wait->host, wait->wide ? 8 : 4))
    return true;
  uint64_t now, want = wait->wide ? wait->value : (uint32_t)wait->value;
  int64_t ahead; /* cyclic comparison, as documented for GEQ */
  if (wait->wide) {
    now = __atomic_load_n((uint64_t *)wait->host, __ATOMIC_ACQUIRE);
    ahead = (int64_t)(now - want);
  } else {
    now = __atomic_load_n((uint32_t *)wait->host, __ATOMIC_ACQUIRE);
    ahead = (int32_t)((uint32_t)now - (uint32_t)want);
  }
  switch (wait->flags & 3) {
    case CU_STREAM_WAIT_VALUE_GEQ: return ahead >= 0;
    case CU_STREAM_WAIT_VALUE_EQ: return now == want;
    case CU_STREAM_WAIT_VALUE_AND: return (now & want) != 0;
    default: return (wait->wide ? ~(now | want) : (uint32_t)~(now | want)) != 0;
  }
}

static void value_write(void *payload) {
  const struct value *write = payload;
  if (!sim_memory_present(write->host, write->wide ? 8 : 4))
    return;
  if (write->wide)
    __atomic_store_n((uint64_t *)write->host, write->value, __ATOMIC_RELEASE);
  else
    __atomic_store_n((uint32_t *)write->host, (uint32_t)write->value, __ATOMIC_RELEASE);
}

enum { BARRIER_NS = 500 /* assumed */ };
enum { WAIT_FLAGS = 3 | CU_STREAM_WAIT_VALUE_FLUSH, WRITE_FLAGS = 1 };

/* Submits `count` consecutive barriers. Work after them is reached in a time slice of this process. */
static CUresult barriers(struct sim_stream *stream, const CUstreamBatchMemOpParams *params, unsigned count) {
  struct sim_op op = {.resource = SIM_FRONT,
                      .duration_ns = count * BARRIER_NS,
                      .node_type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
                      .params = params,
                      .params_bytes = sizeof *params};
  struct sim_op slice = {.resource = SIM_COMPUTE, .duration_ns = 1, .barrier = true, .node_type = SIM_NODE_NONE};
  CUresult result = sim_submit(stream, &op);
  return result || stream->capture ? result : sim_submit(stream, &slice);
}

/* One operation of a batch; the functions for single operations submit batches of one. */
static CUresult memory_op(struct sim_stream *stream, const CUstreamBatchMemOpParams *params) {
  CUstreamBatchMemOpType type = params->operation;
  if (type == CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES)
    return CUDA_SUCCESS;
  bool wide = type == CU_STREAM_MEM_OP_WAIT_VALUE_64 || type == CU_STREAM_MEM_OP_WRITE_VALUE_64;
  bool wait = type == CU_STREAM_MEM_OP_WAIT_VALUE_32 || type == CU_STREAM_MEM_OP_WAIT_VALUE_64;
  bool known = wait || type == CU_STREAM_MEM_OP_WRITE_VALUE_32 || type == CU_STREAM_MEM_OP_WRITE_VALUE_64;
  size_t size = wide ? 8 : 4;
  if (!known || params->value.flags & ~(unsigned)(wait ? WAIT_FLAGS : WRITE_FLAGS) || params->value.address % size)
    return CUDA_ERROR_INVALID_VALUE;
  struct value value = {sim_memory_host(params->value.address, size), params->value.value, params->value.flags, wide};
  if (value.host == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  struct sim_op op = {.resource = wait ? SIM_WAIT_VALUE : SIM_INSTANT,
                      .run = wait ? NULL : value_write,
                      .ready = wait ? value_ready : NULL,
                      .node_type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
                      .payload = &value,
                      .payload_bytes = sizeof value,
                      .params = params,
                      .params_bytes = sizeof *params};
  return sim_submit(stream, &op);
}

static CUresult batch(CUstream handle, unsigned count, const CUstreamBatchMemOpParams *params, unsigned flags) {
  enum { MOST = 256 };
  struct sim_stream *stream;
  CUresult result = sim_stream_get(handle, &stream);
  if (result)
    return result;
  if (params == NULL || count > MOST || flags)
    return CUDA_ERROR_INVALID_VALUE;
  sim_spin(sim_hello.event_ns / 10); /* as an event without a time stamp */
  for (unsigned i = 0, n; i < count && result == CUDA_SUCCESS; i += n) {
    for (n = 0; i + n < count && params[i + n].operation == CU_STREAM_MEM_OP_BARRIER; n++) {
    }
    result = n > 0 ? barriers(stream, &params[i], n) : memory_op(stream, &params[i]);
    n += n == 0;
  }
  return result;
}

static CUresult single(CUstream handle, CUstreamBatchMemOpType type, CUdeviceptr address, uint64_t value,
                       unsigned flags) {
  CUstreamBatchMemOpParams params = {.value = {type, address, value, flags, 0}};
  return batch(handle, 1, &params, 0);
}

#define ADDRESS32 CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags
#define ADDRESS64 CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags
CUresult cuStreamWaitValue32(ADDRESS32) { return single(stream, CU_STREAM_MEM_OP_WAIT_VALUE_32, addr, value, flags); }
CUresult cuStreamWaitValue32_v2(ADDRESS32) {
  return single(stream, CU_STREAM_MEM_OP_WAIT_VALUE_32, addr, value, flags);
}
CUresult cuStreamWaitValue64(ADDRESS64) { return single(stream, CU_STREAM_MEM_OP_WAIT_VALUE_64, addr, value, flags); }
CUresult cuStreamWaitValue64_v2(ADDRESS64) {
  return single(stream, CU_STREAM_MEM_OP_WAIT_VALUE_64, addr, value, flags);
}
CUresult cuStreamWriteValue32(ADDRESS32) { return single(stream, CU_STREAM_MEM_OP_WRITE_VALUE_32, addr, value, flags); }
CUresult cuStreamWriteValue32_v2(ADDRESS32) {
  return single(stream, CU_STREAM_MEM_OP_WRITE_VALUE_32, addr, value, flags);
}
CUresult cuStreamWriteValue64(ADDRESS64) { return single(stream, CU_STREAM_MEM_OP_WRITE_VALUE_64, addr, value, flags); }
CUresult cuStreamWriteValue64_v2(ADDRESS64) {
  return single(stream, CU_STREAM_MEM_OP_WRITE_VALUE_64, addr, value, flags);
}

#define BATCH CUstream stream, unsigned int count, CUstreamBatchMemOpParams *paramArray, unsigned int flags
CUresult cuStreamBatchMemOp(BATCH) { return batch(stream, count, paramArray, flags); }
CUresult cuStreamBatchMemOp_v2(BATCH) { return batch(stream, count, paramArray, flags); }
