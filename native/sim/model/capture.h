/* Captures. Requires sim_lock except for sim_capture_guard. */
#ifndef SIM_CAPTURE_H
#define SIM_CAPTURE_H

#include "sim/model/event.h"

struct sim_graph;

struct sim_capture {
  uint64_t id;
  struct sim_graph *graph;
  bool own_graph; /* created by the capture, so freed if the capture fails */
  /* Callbacks: turn work, an event record or an event wait into a node, and free the graph. */
  CUresult (*append)(struct sim_stream *stream, const struct sim_op *op);
  CUresult (*append_event)(struct sim_stream *stream, struct sim_event *event, int type);
  void (*drop)(struct sim_graph *graph);
  struct sim_stream *origin;
  uint64_t thread; /* the thread that began the capture */
  int mode;
  bool invalid;
  struct sim_event *events;
  /* nodes that streams destroyed during the capture last depended on; other streams must join them too */
  struct sim_graph_node **loose;
  unsigned nloose;
  struct sim_capture *next;
};

/* Sets of nodes that a stream or an event depends on. False: out of memory. */
bool sim_deps_set(struct sim_graph_node ***deps, unsigned *ndeps, struct sim_graph_node *const *from, unsigned n);
bool sim_deps_add(struct sim_graph_node ***deps, unsigned *ndeps, struct sim_graph_node *const *more, unsigned n);

uint64_t sim_capture_thread(void); /* id of the calling thread, as used in struct sim_capture */
/* Adds a capture to the list, and the origin stream to the capture. The caller sets the other fields. */
void sim_capture_begin(struct sim_capture *capture, struct sim_stream *origin);
/* Removes all streams and events from a capture and forgets it. The graph remains. */
void sim_capture_end(struct sim_capture *capture);
/* Adds a stream to a capture. */
void sim_capture_join(struct sim_stream *stream, struct sim_capture *capture);
/* Makes the capture fail when the program ends it. */
void sim_capture_invalidate(struct sim_capture *capture);
/* A capturing stream is being destroyed: ends the capture if this is its origin. Else its work stays in the capture, in
 * which another stream must wait for it. */
void sim_capture_stream_gone(struct sim_stream *stream);
/* Removes an event from its capture, if any. */
void sim_event_uncapture(struct sim_event *event);
/* Checks whether work may be submitted to this stream. STREAM_CAPTURE_IMPLICIT for the legacy stream while a blocking
 * stream of its context captures. */
CUresult sim_capture_implicit(struct sim_stream *stream);
/* sim_capture_guard, with sim_lock held. */
CUresult sim_capture_guard_locked(void);
int sim_capture_mode_exchange(int mode); /* sets the thread's mode; returns the previous one */

#endif
