/* What a generated handler keeps between gs_before_<name> and gs_after_<name>; see hooks.tsv. Owned by the files that
 * define those functions. */
#ifndef GPUSHARE_AROUND_H
#define GPUSHARE_AROUND_H

#include "interposer/process/process.h"

#include "interposer/time/repeat.h"
#include "interposer/time/timing.h"

enum gs_copy { GS_COPY_IN = 0, GS_COPY_OUT = 1, GS_COPY_WITHIN = 2, GS_COPY_UNKNOWN = 3 };

/* A kernel, graph or limit that may make the driver take memory by itself. */
struct gs_first {
  uint64_t kernel; /* its hash, to be remembered once it ran; 0: not to be */
  CUcontext context;
  uint32_t what;   /* enum gs_implicit */
  uint64_t bytes;  /* of what in the context, when this is done */
  bool grows;      /* announced in the books */
  bool collective; /* counted, on the device of this ordinal, into this stream */
  int32_t ordinal;
  CUstream stream;
};

/* What a launch of a graph means to each device; see graph_memory.c. */
struct gs_graph_need {
  uint32_t devices; /* one bit per ordinal; the other words count where it is set */
  uint32_t growing; /* where a growth was begun */
  bool elsewhere;   /* it allocates on .. */
  CUdevice where;   /* .. this device, which is not of the grant */
  uint64_t bytes[GS_MAX_DEVICES];
  uint64_t reserved[GS_MAX_DEVICES];    /* the growth begun */
  uint32_t collectives[GS_MAX_DEVICES]; /* in it */
};

/* Collectives of a node, or of all nodes, of an executable graph before and after a call that changes it. */
struct gs_graph_change {
  CUgraphExec graph;                                     /* NULL: nothing to be counted */
  CUgraphNode node;                                      /* NULL: all */
  bool toggles;                                          /* only whether it runs */
  bool enabled;                                          /* after the call */
  int32_t before[GS_MAX_DEVICES], after[GS_MAX_DEVICES]; /* while it is enabled */
};

/* What a program says of an array it wants. */
struct gs_box {
  bool given;
  CUDA_ARRAY3D_DESCRIPTOR full;
};

/* An array in the making; see arrays.c. */
struct gs_array_charge {
  int ordinal;
  uint64_t bytes;
  CUcontext context;
  bool hopeless; /* there is no room, and it is the driver's to say what else is wrong: uncharged */
  void *const *out;
};

struct gs_around {
  struct gs_first first;           /* kernel, graph_made, kernel_node, graph_updated, limit */
  struct gs_submission submission; /* submit, fill, copy */
  struct gs_stream *stream;        /* copies over the link, waits, event_record */
  CUstream handle;
  CUevent event;
  CUcontext context;
  uint64_t key;             /* graph_changed */
  bool active;              /* gs_enter said yes */
  struct gs_repeat *repeat; /* kernel, sync_stream: as the last one; or NULL */
  bool waits;               /* copy_wait: this one does */
  bool uploads;             /* instantiate: the graph's memory comes at once */
  int ordinal;              /* graph_trim */
  CUgraphExec graph;
  CUgraphExec *made;
  struct gs_array_charge array;   /* array, mipmap */
  struct gs_graph_need need;      /* graph_launch, graph_upload, instantiate, graph_ends */
  struct gs_graph_change change;  /* graph_updated, kernel_node, child_graph, node_enabled */
  CUDA_HOST_NODE_PARAMS *asked;   /* host_node_asked */
  const CUgraphNodeParams *whole; /* any_node_asked */
  CUgraphNodeParams node;         /* host_node, any_node: as the driver gets it */
};

/* launch.c */
/* A kernel's time grows with its grid: each power of two of blocks is learned by itself. */
static inline uint64_t gs_kernel_key(CUfunction function, unsigned int x, unsigned int y, unsigned int z) {
  uint64_t blocks = (uint64_t)x * y * z;
  uint64_t size = blocks ? 64 - (uint64_t)__builtin_clzll(blocks) : 0;
  return (uint64_t)(uintptr_t)function ^ size << 57;
}
static inline uint64_t gs_config_key(CUfunction function, const CUlaunchConfig *config) {
  return config ? gs_kernel_key(function, config->gridDimX, config->gridDimY, config->gridDimZ) : 1;
}
static inline uint64_t gs_graph_key(CUgraphExec graph) { return (uint64_t)(uintptr_t)graph; }
CUresult gs_before_submit(struct gs_around *around, uint64_t key, CUstream stream);
CUresult gs_after_submit(struct gs_around *around, CUresult result);
CUresult gs_before_graph_changed(struct gs_around *around, CUgraphExec graph);
CUresult gs_after_graph_changed(struct gs_around *around, CUresult result);

/* implicit.c */
CUresult gs_before_kernel(struct gs_around *around, CUfunction function, uint64_t key, CUstream stream);
CUresult gs_after_kernel(struct gs_around *around, CUresult result);
CUresult gs_kernel_look(struct gs_first *first, CUfunction function, CUstream stream);
void gs_kernel_looked(const struct gs_first *first, CUresult result);
CUresult gs_before_graph_made(struct gs_around *around, CUgraph graph);
CUresult gs_after_graph_made(struct gs_around *around, CUresult result);
CUresult gs_before_graph_updated(struct gs_around *around, CUgraphExec executable, CUgraph graph);
CUresult gs_after_graph_updated(struct gs_around *around, CUresult result);
CUfunction gs_node_kernel(const CUDA_KERNEL_NODE_PARAMS *params);
CUfunction gs_any_node_kernel(const CUgraphNodeParams *params);
CUresult gs_graph_node_kernel(CUgraphNode node, CUfunction *function, CUcontext *context);
CUresult gs_before_kernel_node(struct gs_around *around, CUgraphExec executable, CUgraphNode node, CUfunction function);
CUresult gs_after_kernel_node(struct gs_around *around, CUresult result);

/* graph_collectives.c */
CUresult gs_before_child_graph(struct gs_around *around, CUgraphExec executable, CUgraphNode node, CUgraph child);
CUresult gs_after_child_graph(struct gs_around *around, CUresult result);
CUresult gs_before_node_enabled(struct gs_around *around, CUgraphExec executable, CUgraphNode node,
                                unsigned int enabled);
CUresult gs_after_node_enabled(struct gs_around *around, CUresult result);
CUresult gs_before_limit(struct gs_around *around, CUlimit limit, size_t value);
CUresult gs_after_limit(struct gs_around *around, CUresult result);

/* graph_memory.c */
CUresult gs_before_graph_launch(struct gs_around *around, CUgraphExec graph, CUstream stream);
CUresult gs_after_graph_launch(struct gs_around *around, CUresult result);
CUresult gs_before_graph_upload(struct gs_around *around, CUgraphExec graph, CUstream stream);
CUresult gs_after_graph_upload(struct gs_around *around, CUresult result);
CUresult gs_before_instantiate(struct gs_around *around, CUgraphExec *made, CUgraph graph,
                               const CUDA_GRAPH_INSTANTIATE_PARAMS *params, CUstream stream);
CUresult gs_after_instantiate(struct gs_around *around, CUresult result);
CUresult gs_before_graph_ends(struct gs_around *around, CUgraphExec graph);
CUresult gs_after_graph_ends(struct gs_around *around, CUresult result);
CUresult gs_before_graph_trim(struct gs_around *around, CUdevice device);
CUresult gs_after_graph_trim(struct gs_around *around, CUresult result);

/* arrays.c */
struct gs_box gs_box_2d(const CUDA_ARRAY_DESCRIPTOR *descriptor);
struct gs_box gs_box_2d_v1(const CUDA_ARRAY_DESCRIPTOR_v1 *descriptor);
struct gs_box gs_box_3d(const CUDA_ARRAY3D_DESCRIPTOR *descriptor);
struct gs_box gs_box_3d_v1(const CUDA_ARRAY3D_DESCRIPTOR_v1 *descriptor);
CUresult gs_before_array(struct gs_around *around, CUarray *array, struct gs_box box);
CUresult gs_after_array(struct gs_around *around, CUresult result);
CUresult gs_before_mipmap(struct gs_around *around, CUmipmappedArray *array, struct gs_box box, unsigned int levels);
CUresult gs_after_mipmap(struct gs_around *around, CUresult result);

/* copies.c */
enum gs_copy gs_direction(CUdeviceptr to, CUdeviceptr from);
enum gs_copy gs_batch_direction(const CUdeviceptr *to, const CUdeviceptr *from, size_t count);
enum gs_copy gs_boxes_direction(const CUDA_MEMCPY3D_BATCH_OP *boxes, size_t count);
enum gs_copy gs_shape_2d_direction(const CUDA_MEMCPY2D *copy);
enum gs_copy gs_shape_3d_direction(const CUDA_MEMCPY3D *copy);
enum gs_copy gs_shape_3d_peer_direction(const CUDA_MEMCPY3D_PEER *copy);
enum gs_copy gs_old_2d_direction(const CUDA_MEMCPY2D_v1 *copy);
enum gs_copy gs_old_3d_direction(const CUDA_MEMCPY3D_v1 *copy);
size_t gs_shape_2d_bytes(const CUDA_MEMCPY2D *copy);
size_t gs_shape_3d_bytes(const CUDA_MEMCPY3D *copy);
size_t gs_shape_3d_peer_bytes(const CUDA_MEMCPY3D_PEER *copy);
size_t gs_old_2d_bytes(const CUDA_MEMCPY2D_v1 *copy);
size_t gs_old_3d_bytes(const CUDA_MEMCPY3D_v1 *copy);
CUresult gs_before_copy(struct gs_around *around, enum gs_copy direction, size_t bytes, CUstream stream);
CUresult gs_after_copy(struct gs_around *around, CUresult result);
CUresult gs_before_copy_wait(struct gs_around *around, enum gs_copy direction, size_t bytes, CUstream stream);
CUresult gs_after_copy_wait(struct gs_around *around, CUresult result);
CUresult gs_before_fill(struct gs_around *around, size_t bytes, CUstream stream);
CUresult gs_after_fill(struct gs_around *around, CUresult result);

/* callbacks.c: each exchanges the function in its caller's parameter. */
CUresult gs_before_host_function(struct gs_around *around, CUhostFn *function);
CUresult gs_after_host_function(struct gs_around *around, CUresult result);
CUresult gs_before_callback(struct gs_around *around, CUstreamCallback *function);
CUresult gs_after_callback(struct gs_around *around, CUresult result);
CUresult gs_before_host_node(struct gs_around *around, const CUDA_HOST_NODE_PARAMS **params);
CUresult gs_after_host_node(struct gs_around *around, CUresult result);
CUresult gs_before_host_node_changed(struct gs_around *around, CUgraphExec graph, const CUDA_HOST_NODE_PARAMS **params);
CUresult gs_after_host_node_changed(struct gs_around *around, CUresult result);
CUresult gs_before_host_node_asked(struct gs_around *around, CUDA_HOST_NODE_PARAMS *params);
CUresult gs_after_host_node_asked(struct gs_around *around, CUresult result);
CUresult gs_before_any_node(struct gs_around *around, CUgraphNodeParams **params);
CUresult gs_after_any_node(struct gs_around *around, CUresult result);
CUresult gs_before_any_node_asked(struct gs_around *around, CUgraphNodeParams *params);
CUresult gs_after_any_node_asked(struct gs_around *around, CUresult result);
CUresult gs_before_any_node_changed(struct gs_around *around, CUgraphExec graph, CUgraphNode node,
                                    CUgraphNodeParams **params);
CUresult gs_after_any_node_changed(struct gs_around *around, CUresult result);

/* elsewhere.c */
static inline CUmemLocation gs_device_place(CUdevice device) {
  return (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, device};
}
CUresult gs_before_prefetch(struct gs_around *around, const CUmemLocation *places, size_t count, CUstream stream);
CUresult gs_after_prefetch(struct gs_around *around, CUresult result);
CUresult gs_before_advise(struct gs_around *around, CUmem_advise advice, CUmemLocation place);
CUresult gs_after_advise(struct gs_around *around, CUresult result);

/* capture.c */
CUresult gs_before_capture_begin(struct gs_around *around, CUstream stream);
CUresult gs_after_capture_begin(struct gs_around *around, CUresult result);
CUresult gs_before_capture_end(struct gs_around *around, CUstream stream);
CUresult gs_after_capture_end(struct gs_around *around, CUresult result);
CUresult gs_before_stream_gone(struct gs_around *around, CUstream stream);
CUresult gs_after_stream_gone(struct gs_around *around, CUresult result);

/* sync.c */
CUresult gs_before_sync_stream(struct gs_around *around, CUstream stream);
CUresult gs_after_sync_stream(struct gs_around *around, CUresult result);
CUresult gs_before_query_stream(struct gs_around *around, CUstream stream);
CUresult gs_after_query_stream(struct gs_around *around, CUresult result);
CUresult gs_before_sync_context(struct gs_around *around, CUcontext context);
CUresult gs_after_sync_context(struct gs_around *around, CUresult result);
CUresult gs_before_event_record(struct gs_around *around, CUevent event, CUstream stream);
CUresult gs_after_event_record(struct gs_around *around, CUresult result);
CUresult gs_before_event_wait(struct gs_around *around, CUevent event);
CUresult gs_after_event_wait(struct gs_around *around, CUresult result);
CUresult gs_before_event_query(struct gs_around *around, CUevent event);
CUresult gs_after_event_query(struct gs_around *around, CUresult result);
CUresult gs_before_event_gone(struct gs_around *around, CUevent event);
CUresult gs_after_event_gone(struct gs_around *around, CUresult result);

#endif
