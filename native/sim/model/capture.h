/* Captures. All with sim_lock held but sim_capture_guard. */
#ifndef SIM_CAPTURE_H
#define SIM_CAPTURE_H

#include "sim/model/event.h"

struct sim_graph;

struct sim_capture {
  uint64_t id;
  struct sim_graph *graph;
  bool own_graph; /* made by the capture, so dropped when the capture fails */
  /* How work, a record or a wait of an event becomes a node, and how the graph is freed. */
  CUresult (*append)(struct sim_stream *stream, const struct sim_op *op);
  CUresult (*append_event)(struct sim_stream *stream, struct sim_event *event, int type);
  void (*drop)(struct sim_graph *graph);
  struct sim_stream *origin;
  uint64_t thread; /* who began it */
  int mode;
  bool invalid;
  struct sim_event *events;
  struct sim_capture *next;
};

/* Sets of nodes that a stream or an event depends on. False: no memory. */
bool sim_deps_set(struct sim_graph_node ***deps, unsigned *ndeps, struct sim_graph_node *const *from, unsigned n);
bool sim_deps_add(struct sim_graph_node ***deps, unsigned *ndeps, struct sim_graph_node *const *more, unsigned n);

uint64_t sim_capture_thread(void); /* the calling thread, as struct sim_capture names it */
/* Puts a capture on the list, its origin in it; the rest of the struct is the caller's. */
void sim_capture_begin(struct sim_capture *capture, struct sim_stream *origin);
/* Takes all streams and events out of a capture and forgets it; its graph stays. */
void sim_capture_end(struct sim_capture *capture);
void sim_capture_join(struct sim_stream *stream, struct sim_capture *capture);
void sim_capture_invalidate(struct sim_capture *capture);
void sim_capture_stream_gone(struct sim_stream *stream);
void sim_event_uncapture(struct sim_event *event);
/* May work be submitted to this stream now? IMPLICIT for the legacy stream while a blocking stream of its context
 * captures. */
CUresult sim_capture_implicit(struct sim_stream *stream);
CUresult sim_capture_guard_locked(void);
int sim_capture_mode_exchange(int mode); /* the thread's; the one before */

#endif
