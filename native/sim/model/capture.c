/* Stream capture: which streams are captured, the dependencies of streams and events, and the calls that are forbidden
 * meanwhile. The graph directory turns captured work into nodes. */
#define _GNU_SOURCE
#include "sim/model/capture.h"

#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct sim_capture *captures;
static uint64_t capture_ids;
static __thread int thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

uint64_t sim_capture_thread(void) { return (uint64_t)syscall(SYS_gettid); }

/* ---- dependencies of a stream or an event: sets of nodes --------------------------------------------------------- */

bool sim_deps_set(struct sim_graph_node ***deps, unsigned *ndeps, struct sim_graph_node *const *from, unsigned n) {
  struct sim_graph_node **copy = malloc((n + 1) * sizeof *copy);
  if (copy == NULL)
    return false;
  if (n)
    memcpy(copy, from, n * sizeof *copy);
  free(*deps);
  *deps = copy;
  *ndeps = n;
  return true;
}

bool sim_deps_add(struct sim_graph_node ***deps, unsigned *ndeps, struct sim_graph_node *const *more, unsigned n) {
  struct sim_graph_node **grown = realloc(*deps, (*ndeps + n + 1) * sizeof *grown);
  if (grown == NULL)
    return false;
  *deps = grown;
  for (unsigned i = 0; i < n; i++) {
    bool known = false;
    for (unsigned j = 0; j < *ndeps; j++)
      known |= grown[j] == more[i];
    if (!known)
      grown[(*ndeps)++] = more[i];
  }
  return true;
}

void sim_event_uncapture(struct sim_event *event) {
  if (event->capture == NULL)
    return;
  struct sim_event **at = &event->capture->events;
  while (*at != event)
    at = &(*at)->cap_next;
  *at = event->cap_next;
  event->cap_next = NULL;
  event->capture = NULL;
  event->cap_ndeps = 0;
  free(event->cap_deps);
  event->cap_deps = NULL;
}

/* ---- beginning and ending ---------------------------------------------------------------------------------------- */

static void stream_leaves(struct sim_stream *stream) {
  stream->capture = NULL;
  free(stream->cap_deps);
  free(stream->cap_edges);
  stream->cap_deps = NULL;
  stream->cap_edges = NULL;
  stream->cap_ndeps = 0;
  stream->ctx->captures--;
}

void sim_capture_join(struct sim_stream *stream, struct sim_capture *capture) {
  stream->capture = capture;
  stream->ctx->captures++;
}

void sim_capture_begin(struct sim_capture *capture, struct sim_stream *origin) {
  capture->id = ++capture_ids;
  capture->origin = origin;
  capture->thread = sim_capture_thread();
  capture->next = captures;
  captures = capture;
  sim_capture_join(origin, capture);
}

void sim_capture_invalidate(struct sim_capture *capture) { capture->invalid = true; }

void sim_capture_end(struct sim_capture *capture) {
  for (struct sim_ctx *ctx = sim_contexts; ctx; ctx = ctx->next)
    for (struct sim_stream *stream = ctx->streams; stream; stream = stream->next)
      if (stream->capture == capture)
        stream_leaves(stream);
  while (capture->events)
    sim_event_uncapture(capture->events);
  struct sim_capture **at = &captures;
  while (*at != capture)
    at = &(*at)->next;
  *at = capture->next;
  free(capture->loose);
  free(capture);
}

void sim_capture_stream_gone(struct sim_stream *stream) {
  struct sim_capture *capture = stream->capture;
  if (capture->origin != stream &&
      !sim_deps_add(&capture->loose, &capture->nloose, stream->cap_deps, stream->cap_ndeps))
    capture->invalid = true;
  stream_leaves(stream);
  if (capture->origin != stream)
    return;
  /* The origin stream is gone, so the capture can never be ended by the program. */
  struct sim_graph *graph = capture->own_graph ? capture->graph : NULL;
  void (*drop)(struct sim_graph *) = capture->drop;
  sim_capture_end(capture);
  if (graph)
    drop(graph);
}

/* ---- what a capture forbids -------------------------------------------------------------------------------------- */

CUresult sim_capture_implicit(struct sim_stream *stream) {
  if (!stream->legacy || stream->ctx->captures == 0)
    return CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  for (struct sim_stream *other = stream->ctx->streams; other; other = other->next)
    if (other->blocking && other->capture) {
      sim_capture_invalidate(other->capture);
      result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
  return result;
}

/* A thread in global mode must not make unsafe calls while it, or any other thread in global mode, captures. In
 * thread-local mode only the thread's own captures count. Relaxed mode allows all calls. */
CUresult sim_capture_guard_locked(void) {
  CUresult result = CUDA_SUCCESS;
  if (captures == NULL || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
    return CUDA_SUCCESS;
  uint64_t self = sim_capture_thread();
  for (struct sim_capture *capture = captures; capture; capture = capture->next) {
    bool own = capture->thread == self && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    bool global = thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!own && !global)
      continue;
    sim_capture_invalidate(capture);
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

CUresult sim_capture_guard(void) {
  sim_lock();
  CUresult result = sim_capture_guard_locked();
  sim_unlock();
  return result;
}

int sim_capture_mode_exchange(int mode) {
  int before = thread_mode;
  thread_mode = mode;
  return before;
}
