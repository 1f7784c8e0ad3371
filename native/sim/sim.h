/* Internals of the simulated libcuda.so.1, shared by its C files.
 *
 * The process-private model is a discrete-event simulation under one lock (sim_lock): streams are queues of items; an
 * item is work on a resource (compute, a copy engine), or an order (event, wait, host function). sim_advance brings the
 * model to a point in time; everything that became due on the way happened at its exact model time, whenever somebody
 * looks.
 *
 * Lock order: sim_lock, then locks of memory.c and friends, then the socket's lock. An op's run() is called with
 * sim_lock held. Never call sim_submit, sim_stream_wait or sim_ctx_wait with another lock held. */
#ifndef SIM_H
#define SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sim_api.h" /* generated from native/api/driver.tsv: prototypes of every exported function and types */
#include "sim/sim_proto.h"

enum { SIM_CAPABILITY_MAJOR = 8, SIM_CAPABILITY_MINOR = 0 }; /* of every device */
enum { SIM_CUDA_VERSION = 13000 };

/* ---- wire.c: the connection to the engine; used by libcuda and by libnvidia-ml, needs nothing of the rest -------- */

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

/* ---- client.c: this process and its devices ---------------------------------------------------------------------- */

uint64_t sim_now(void); /* CLOCK_MONOTONIC */
void sim_spin(uint64_t ns);
static inline void sim_pause(void) {
#ifdef __x86_64__
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}
const struct sim_hello *sim_info(void); /* valid after cuInit */

/* CUDA_SUCCESS after a successful cuInit in this very process, else NOT_INITIALIZED (never called, or a fork's child). */
CUresult sim_ready(void);
bool sim_device_valid(CUdevice device);
uint32_t sim_engine_device(CUdevice device); /* as the engine numbers it: CUDA_VISIBLE_DEVICES may hide and reorder */

/* The simulator's books of device memory: exact bytes, CUDA_ERROR_OUT_OF_MEMORY when the device is full. Rounding is
 * the caller's business. Can be called with any lock held. */
CUresult sim_memory_reserve(CUdevice device, uint64_t bytes);
void sim_memory_release(CUdevice device, uint64_t bytes);
CUresult sim_memory_info(CUdevice device, uint64_t *free_bytes, uint64_t *total_bytes);
/* Leaves the file behind this process's memory on a device with the engine, under a secret, and finds another
 * process's. The device of that one is told as the engine numbers it. 0 or a negative errno. */
int sim_file_put(CUdevice device, uint32_t op, const uint64_t secret[2], int fd); /* SIM_FILE_PUT or SIM_EVENTS_PUT */
int sim_file_get(const uint64_t secret[2], int *fd, uint32_t *engine_device, int *pid);

/* ---- context.c --------------------------------------------------------------------------------------------------- */

struct sim_stream;

struct sim_ctx {
  uint32_t magic;
  CUdevice device;
  unsigned flags;
  unsigned api_version;
  uint64_t id;
  bool primary, alive;        /* a primary context stays allocated; alive between first retain and last release */
  int refs;                   /* retains of a primary context */
  struct sim_stream *legacy;  /* default stream; made with the context */
  struct sim_stream *streams; /* all of the context, legacy included; under sim_lock */
  int captures;               /* streams of it that are capturing; under sim_lock */
  struct sim_ctx *next;
  /* the primary context whose memory and programs a green context uses; NULL: an ordinary one */
  struct sim_ctx *green_of;
  size_t limit[16];
  uint32_t peers; /* bit per device whose memory this context may reach */
  unsigned cache_config, shared_config;
  void *memory; /* memory.c's own: whatever it hangs on a context */
  struct sim_implicit {
    uint64_t images, code_charged; /* bytes of the programs in it; what is charged for them */
    /* local memory per thread the device is set up for; what exceeds that of a new context */
    uint64_t stack, stack_charged;
    uint64_t buffer_charged[3]; /* by limit: printf FIFO and malloc heap */
  } implicit;                   /* implicit.c's; under sim_lock */
};

/* The calling thread's current context, alive, or NULL. */
struct sim_ctx *sim_ctx_current(void);
/* Ready and with a live current context: NOT_INITIALIZED, INVALID_CONTEXT, CONTEXT_IS_DESTROYED otherwise. */
CUresult sim_ctx_need(struct sim_ctx **ctx);
/* A handle -> live context (NULL means the current one); INVALID_CONTEXT otherwise. */
CUresult sim_ctx_get(CUcontext handle, struct sim_ctx **ctx);
/* Whose a context's memory, programs and settings are: its own, or of a green one the primary context's. */
static inline struct sim_ctx *sim_ctx_owner(struct sim_ctx *ctx) { return ctx->green_of ? ctx->green_of : ctx; }
/* The primary context of a device without retaining it; it may be not alive. */
struct sim_ctx *sim_ctx_primary(CUdevice device);

/* A context with streams of its own and the memory of the device's primary context, which it keeps alive. */
CUresult sim_ctx_green_new(CUdevice device, struct sim_ctx **ctx);
CUresult sim_ctx_green_end(struct sim_ctx *ctx);
CUgreenCtx sim_green_of(const struct sim_ctx *ctx); /* green.c: NULL for an ordinary context */
void sim_green_gone(const struct sim_ctx *ctx);     /* green.c: its primary context was reset; sim_lock held */

/* ---- implicit.c: what a context takes without being asked by an allocation --------------------------------------- */

/* A program comes into a context, or leaves it. sim_lock held. */
CUresult sim_code_load(struct sim_ctx *ctx, uint64_t bytes);
void sim_code_unload(struct sim_ctx *ctx, uint64_t bytes);
/* A kernel with that much local memory per thread is about to run: the device is set up for it, for good. sim_lock
 * held. */
CUresult sim_stack_need(struct sim_ctx *ctx, uint64_t bytes_per_thread);
CUresult sim_limit_set(struct sim_ctx *ctx, CUlimit limit, size_t value);
size_t sim_ctx_default_limit(CUlimit limit); /* context.c */
/* sim_lock held */
void sim_implicit_begin(struct sim_ctx *ctx);
void sim_implicit_end(struct sim_ctx *ctx);

/* ---- stream.c, model.c: work ------------------------------------------------------------------------------------- */

enum sim_resource {
  SIM_COMPUTE,    /* kernels, fills, copies inside a device: needs the device's time */
  SIM_COPY_IN,    /* host to device engine: runs beside compute, wall time */
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

/* Resolves a stream handle: NULL is the legacy stream, or the calling thread's own where per_thread (the _ptds/_ptsz
 * functions); CU_STREAM_LEGACY, CU_STREAM_PER_THREAD. INVALID_CONTEXT, INVALID_HANDLE. */
CUresult sim_stream_get(CUstream handle, bool per_thread, struct sim_stream **stream);
struct sim_ctx *sim_stream_ctx(const struct sim_stream *stream);
bool sim_stream_capturing(struct sim_stream *stream);

/* Appends work to a stream, or a node to the graph the stream is captured into. Blocks while the stream's queue is
 * full. Capture rules are checked here (legacy stream during a capture: STREAM_CAPTURE_IMPLICIT). */
CUresult sim_submit(struct sim_stream *stream, const struct sim_op *op);
/* Waits until everything submitted to the stream so far is done. STREAM_CAPTURE_UNSUPPORTED on a capturing stream. */
CUresult sim_stream_wait(struct sim_stream *stream);
/* Both, as synchronous copies do; STREAM_CAPTURE_UNSUPPORTED where the stream captures. */
CUresult sim_submit_and_wait(struct sim_stream *stream, const struct sim_op *op);
/* Waits for all work of a context (of the whole device for device == its device). cuMemFree and friends synchronise so. */
CUresult sim_ctx_wait(struct sim_ctx *ctx);
void sim_device_wait(CUdevice device);
/* For calls that are unsafe while a stream is captured (cuMemAlloc, cuMemFree...): by the thread's capture mode either
 * fine or STREAM_CAPTURE_UNSUPPORTED, which also invalidates the captures concerned. */
CUresult sim_capture_guard(void);
/* Adds a cost of the device to a copy: latency of one transfer plus bytes over the link, in ns. */
uint64_t sim_copy_ns(uint64_t bytes);
/* The same for work inside the device (fills, device to device): 20 times the link's rate. */
uint64_t sim_fill_ns(uint64_t bytes);

extern void sim_lock(void);
extern void sim_unlock(void);

/* ---- what memory.c, copies.c, pools.c give to the others --------------------------------------------------------- */

/* Ops for graph nodes and captures. payload/params point into *storage, which the caller keeps until the op was
 * submitted. */
union sim_op_storage {
  unsigned char bytes[2 * SIM_PAYLOAD_MAX];
  uint64_t align;
};
CUresult sim_memcpy_op(struct sim_ctx *ctx, const CUDA_MEMCPY3D *params, struct sim_op *op,
                       union sim_op_storage *storage);
CUresult sim_memset_op(struct sim_ctx *ctx, const CUDA_MEMSET_NODE_PARAMS *params, struct sim_op *op,
                       union sim_op_storage *storage);
/* Memory of graph allocation nodes: reserve gives an address without bytes behind it. A launch commits: freed_inside,
 * the graph frees it again; otherwise it is the program's until freed, and without auto_free a second launch before
 * that is refused. uncommit undoes one commit (may be called from run()); destroy forgets the address. */
CUresult sim_graph_mem_reserve(CUdevice device, size_t bytes, CUdeviceptr *address);
CUresult sim_graph_mem_commit(CUdeviceptr address, bool freed_inside, bool auto_free);
void sim_graph_mem_uncommit(CUdeviceptr address);
void sim_graph_mem_destroy(CUdeviceptr address);
/* The host pointer behind [address, address + bytes), device or mapped host memory, or NULL. Any lock may be held. */
void *sim_memory_host(CUdeviceptr address, size_t bytes);
/* Frees what a context still holds, when it is destroyed; no work is pending. */
void sim_memory_ctx_destroyed(struct sim_ctx *ctx);
/* Somebody waited for a stream, an event, a context or a device, and no lock is held: pools give back what exceeds
 * their release threshold. */
void sim_pools_synchronized(void);
/* Memory of a module's globals, charged with the module. It ends when freed or with its context, and its address may
 * then be something else's: *id tells whether it is still the same. Freeing what is gone is no error. */
CUresult sim_memory_module_alloc(struct sim_ctx *ctx, size_t bytes, CUdeviceptr *address, uint64_t *id);
bool sim_memory_module_alive(CUdeviceptr address, uint64_t id);
void sim_memory_module_free(CUdeviceptr address, uint64_t id);

#endif
