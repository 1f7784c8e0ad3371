/* Host functions and callbacks. The driver calls them in stream order on a thread of its own, and their stream does not
 * proceed until they return: work that the program submits from one must never wait for the stream's own work, nor for
 * a lease unless callbacks alone keep the device busy. So the driver gets a wrapper function, which marks its thread
 * while the program's function runs.
 *
 * Each function of the program keeps one place here for the life of the process. The argument that the driver passes
 * goes through unchanged, so no state is kept per call: a graph node may run the function many times, and with a broken
 * context it never runs. A program has few such functions; those beyond PLACES are called directly, and gated. */
#include "interposer/hooks/graphs/callbacks.h"
#include "interposer/hooks/graphs/nodes.h"
#include "interposer/time/marks/waits.h"
#include "interposer/time/thread.h"

enum { PLACES = 512 /* a power of two, and of eight */ };

static CUhostFn host_function[PLACES];
static CUstreamCallback callback[PLACES];

static void run_host(unsigned place, void *data) {
  bool before = gs_called_back;
  gs_called_back = true;
  __atomic_load_n(&host_function[place], __ATOMIC_ACQUIRE)(data);
  gs_called_back = before;
}

static void run_callback(unsigned place, CUstream stream, CUresult result, void *data) {
  bool before = gs_called_back;
  gs_called_back = true;
  __atomic_load_n(&callback[place], __ATOMIC_ACQUIRE)(stream, result, data);
  gs_called_back = before;
}

/* One pair of wrappers for each place, numbered in octal. */
#define PAIR(n) \
  static void host_##n(void *data) { run_host(n, data); } \
  static void callback_##n(CUstream stream, CUresult result, void *data) { run_callback(n, stream, result, data); }
#define HOST(n) host_##n,
#define CALLBACK(n) callback_##n,
#define EIGHT(each, n) each(n##0) each(n##1) each(n##2) each(n##3) each(n##4) each(n##5) each(n##6) each(n##7)
#define SIXTY_FOUR(each, n) \
  EIGHT(each, n##0) \
  EIGHT(each, n##1) \
  EIGHT(each, n##2) EIGHT(each, n##3) EIGHT(each, n##4) EIGHT(each, n##5) EIGHT(each, n##6) EIGHT(each, n##7)
#define ALL(each) \
  SIXTY_FOUR(each, 00) \
  SIXTY_FOUR(each, 01) \
  SIXTY_FOUR(each, 02) \
  SIXTY_FOUR(each, 03) SIXTY_FOUR(each, 04) SIXTY_FOUR(each, 05) SIXTY_FOUR(each, 06) SIXTY_FOUR(each, 07)

ALL(PAIR)
static const CUhostFn host_place[PLACES] = {ALL(HOST)};
static const CUstreamCallback callback_place[PLACES] = {ALL(CALLBACK)};

/* The place of a function in a table of PLACES; PLACES if the table is full. */
static unsigned place_of(void **table, void *function) {
  unsigned first = (unsigned)((uintptr_t)function >> 4);
  for (unsigned i = 0; i < PLACES; i++) {
    unsigned place = (first + i) % PLACES;
    void *seen = NULL;
    if (__atomic_compare_exchange_n(&table[place], &seen, function, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) ||
        seen == function)
      return place;
  }
  return PLACES;
}

/* The program's function behind a wrapper; any other function is returned unchanged. */
static CUhostFn behind(CUhostFn function) {
  for (unsigned i = 0; i < PLACES; i++)
    if (host_place[i] == function)
      return __atomic_load_n(&host_function[i], __ATOMIC_ACQUIRE);
  return function;
}

static bool joined(void) { return __atomic_load_n(&gs_process->joined, __ATOMIC_ACQUIRE) == GS_JOINED; }

static void exchange(CUhostFn *function) {
  unsigned place;
  if (!*function || !joined() || (place = place_of((void **)host_function, (void *)behind(*function))) == PLACES)
    return;
  *function = host_place[place];
}

/* ---- handlers ---- */

/* The call fails if the process could not join. */
static CUresult enter(void) {
  CUresult result = CUDA_SUCCESS;
  gs_enter(&result);
  return result;
}

CUresult gs_before_host_function(CUhostFn *function, CUstream stream) {
  exchange(function);
  gs_stream_clouded(stream);
  return enter();
}

CUresult gs_before_callback(CUstreamCallback *function, CUstream stream) {
  unsigned place;
  gs_stream_clouded(stream);
  if (*function && joined() && (place = place_of((void **)callback, (void *)*function)) != PLACES)
    *function = callback_place[place];
  return enter();
}

CUresult gs_before_host_node(struct gs_around_host_node *around, const CUDA_HOST_NODE_PARAMS **params) {
  if (*params) {
    around->node = **params;
    exchange(&around->node.fn);
    *params = &around->node;
  }
  return enter();
}

CUresult gs_before_host_node_changed(struct gs_around_host_node_changed *around, CUgraphExec graph,
                                     const CUDA_HOST_NODE_PARAMS **params) {
  CUresult result = gs_before_host_node(&around->host, params);
  return result == CUDA_SUCCESS ? gs_before_graph_changed(&around->changed, graph) : result;
}

CUresult gs_after_host_node_changed(struct gs_around_host_node_changed *around, CUresult result) {
  return gs_after_graph_changed(&around->changed, result);
}

/* The program gets back the function that it set. */
CUresult gs_before_host_node_asked(struct gs_around_host_node_asked *around, CUDA_HOST_NODE_PARAMS *params) {
  around->asked = params;
  return enter();
}

CUresult gs_after_host_node_asked(struct gs_around_host_node_asked *around, CUresult result) {
  if (result == CUDA_SUCCESS && around->asked)
    around->asked->fn = behind(around->asked->fn);
  return result;
}

/* Replaces the function of host nodes only; the driver writes nothing back to their parameters. */
CUresult gs_before_any_node(struct gs_around_any_node *around, CUgraphNodeParams **params) {
  if (*params && (*params)->type == CU_GRAPH_NODE_TYPE_HOST) {
    around->node = **params;
    exchange(&around->node.host.fn);
    *params = &around->node;
  }
  return enter();
}

CUresult gs_before_new_node(struct gs_around_new_node *around, CUgraphNode *node, CUgraphNodeParams **params) {
  CUresult result = gs_before_any_node(&around->any, params);
  return result == CUDA_SUCCESS ? gs_bodies_begin(&around->bodies, node, *params) : result;
}

CUresult gs_after_new_node(struct gs_around_new_node *around, CUresult result) {
  gs_bodies_end(&around->bodies, result);
  return result;
}

CUresult gs_before_any_node_asked(struct gs_around_any_node_asked *around, CUgraphNodeParams *params) {
  around->asked = params;
  return enter();
}

CUresult gs_after_any_node_asked(struct gs_around_any_node_asked *around, CUresult result) {
  if (result == CUDA_SUCCESS && around->asked && around->asked->type == CU_GRAPH_NODE_TYPE_HOST)
    around->asked->host.fn = behind(around->asked->host.fn);
  return result;
}

CUresult gs_before_any_node_changed(struct gs_around_any_node_changed *around, CUgraphExec graph, CUgraphNode node,
                                    CUgraphNodeParams **params) {
  CUresult result = gs_before_any_node(&around->any, params);
  return result != CUDA_SUCCESS ? result
                                : gs_before_kernel_node(&around->kernel, graph, node, gs_any_node_kernel(*params));
}

CUresult gs_after_any_node_changed(struct gs_around_any_node_changed *around, CUresult result) {
  return gs_after_kernel_node(&around->kernel, result);
}
