/* The model of one process's devices: items in streams, resources, and the lane over which device time arrives.
 *
 * This is a discrete-event simulation under one lock (sim_lock). Streams are queues of items. An item is either work on
 * a resource (compute, a copy engine) or an ordering operation (event, wait, host function). sim_advance brings the
 * model to a point in time. Everything that became due in between takes effect at its exact model time, independent of
 * when sim_advance is called. */
#ifndef SIM_MODEL_H
#define SIM_MODEL_H

#include <pthread.h>

#include "sim/model/attributes.h"
#include "sim/model/stream.h"

#define SIM_NEVER UINT64_MAX
#define SIM_SPIN_NS (1ull << 50) /* remaining time of a kernel that waits for others: without end */

struct sim_item;

/* The result of an event record: reached at an exact time. Waits refer to it. */
struct sim_mark {
  unsigned refs;
  bool done;
  bool chained; /* reached without a gap in the device's work; see struct sim_item.chained */
  CUdevice device;
  uint64_t time;
  struct sim_item *item;    /* the record, while pending */
  struct sim_item *waiters; /* wait items in queues, through wait_next */
};

/* An item of a stream's queue. */
struct sim_item {
  struct sim_item *next;       /* in the stream */
  struct sim_item *ready_next; /* in a resource's queue */
  struct sim_item *wait_next;  /* in a mark's waiters, or in the list of value waits */
  struct sim_stream *stream;
  uint64_t seq;         /* order of submission in the process */
  uint64_t compute_sum; /* device time submitted to the stream up to and including this item */
  uint64_t copy_sum;    /* the same for copy time */
  uint64_t remaining;   /* compute: device time still to execute */
  uint64_t end;         /* copies and barriers, once started: when it ends; copies: if they are alone on the link */
  uint64_t bytes;       /* of sim_op, as pageable below */
  bool started;         /* given to its resource */
  bool chained;         /* runnable without a gap: preceded only by device work that is itself chained */
  bool attended;        /* the worker thread processes it at its due time */
  bool counted;         /* counts towards the queue depth */
  bool barrier;         /* of sim_op */
  bool pageable;
  enum sim_resource resource;
  uint64_t duration;
  void (*run)(void *payload);
  bool (*ready)(const void *payload);
  void (*begin)(void *payload);
  bool (*meet)(void *payload); /* NULL also once the kernels it waits for have arrived */
  struct sim_mark *mark; /* reached by this item (SIM_INSTANT) or waited for (SIM_WAIT_EVENT); a counted reference */
  size_t payload_bytes;
  _Alignas(16) unsigned char payload[];
};

struct sim_capture;
struct sim_graph_node;

struct sim_stream {
  uint32_t magic;
  bool legacy, blocking, gone; /* gone: destroyed, its work not yet done */
  bool kicked, chain_kicked;   /* on the work lists of model.c */
  /* fields that a wait for the context reads in each stream, kept close together for the cache */
  struct sim_stream *next; /* in the context */
  struct sim_ctx *ctx;
  struct sim_item *head, *tail;
  struct sim_item *chain; /* first item not chained */
  struct sim_capture *capture;
  struct sim_stream *kick_next, *chain_next;
  unsigned flags;
  int priority;
  uint64_t id;
  unsigned depth, attended;
  uint64_t compute_sum, copy_sum;
  /* capture */
  struct sim_graph_node **cap_deps;
  unsigned cap_ndeps;
  void *cap_edges; /* edge data of cap_deps as last queried: all zero, which means full dependencies */
  struct sim_attributes attributes;
};

/* A hardware unit that executes one item at a time. */
struct sim_unit {
  struct sim_item *running, *ready_head;
};

/* One visible device. */
struct sim_device {
  bool open;
  uint32_t index; /* the engine's device number */
  struct sim_lane *page;
  int bell;
  uint64_t cursor;   /* the lane has been consumed up to this time */
  uint64_t interval; /* the interval that contains the cursor, or the next one */
  uint64_t got;      /* device time granted up to the cursor */
  uint64_t executed, backlog, barriers;
  bool dirty; /* backlog grew since the last report */
  struct sim_unit compute, copy_in, copy_out, front;
  struct sim_item *hosts; /* host functions that are due, through ready_next */
  unsigned attended;
  bool worker;
};

extern struct sim_device sim_devices[SIM_MAX_DEVICES];

/* Counts items that the worker attends to, also for the engine (SIM_CHECKPOINT). Requires sim_lock. */
static inline void sim_attended(CUdevice index, int more) {
  struct sim_device *device = &sim_devices[index];
  device->attended += (unsigned)more;
  __atomic_store_n(&device->page->pending, device->attended, __ATOMIC_SEQ_CST);
}

extern struct sim_hello sim_hello; /* devices as this process sees them (CUDA_VISIBLE_DEVICES applied) */
void sim_choose_devices(const struct sim_hello *hello); /* fills sim_hello and sim_devices; visible.c */

/* process.c */
CUresult sim_device_open(CUdevice device); /* opens the lane at the first call; requires sim_lock */
/* Sends one request to the engine for a device; the arguments are those of sim_wire_call. 0 or a negative errno. */
int sim_call(uint32_t op, CUdevice device, uint64_t a, struct sim_reply *reply, int *fds, int nfds);

/* lane.c */
/* the time at which `need` more device time has been granted, or NEVER */
uint64_t sim_lane_when(const struct sim_device *device, uint64_t need);
/* moves the cursor to t; returns the device time granted on the way */
uint64_t sim_lane_consume(struct sim_device *device, uint64_t t);
/* publishes a report if dirty; rings the bell if needed */
void sim_lane_report(struct sim_device *device);
/* Publishes the end of a work item, as the value of executed at which it ends; see struct sim_lane. */
void sim_lane_boundary(struct sim_device *device, uint64_t executed);
/* Waiting for changes of the lane: read the word, check the condition, then wait while the word is unchanged. A wake by
 * the engine or by sim_lane_wake ends the wait. */
uint32_t sim_lane_word(const struct sim_device *device);
void sim_lane_wait(const struct sim_device *device, uint32_t word, uint64_t timeout_ns);
void sim_lane_wake(struct sim_device *device);

/* model.c */
void sim_advance(uint64_t now); /* advances the model to now; requires sim_lock */
struct sim_item *sim_item_new(struct sim_stream *stream, enum sim_resource resource, uint64_t duration,
                              size_t payload_bytes);
void sim_item_push(struct sim_item *item);                 /* appends to the stream; call sim_settle afterwards */
void sim_settle(uint64_t now);                             /* starts what can start, then publishes reports */
void sim_item_complete(struct sim_item *item, uint64_t t); /* at time t; frees the item */
uint64_t sim_item_end(const struct sim_item *item);        /* of a copy or barrier that has started */
bool sim_item_spins(const struct sim_item *item);          /* it occupies the device while waiting for other kernels */
uint64_t sim_next_event(void);                             /* when a running item completes next, or NEVER */
/* The earliest time at which the stream can have completed the given sums of compute and copy time. Returns `now` if
 * nothing that takes time is outstanding, and SIM_NEVER while another lane has the device. depth: how many waits for
 * other streams to follow. */
uint64_t sim_bound(const struct sim_stream *stream, uint64_t compute_sum, uint64_t copy_sum, uint64_t now, int depth);
/* A mark with one reference; NULL: out of memory. */
struct sim_mark *sim_mark_new(CUdevice device);
void sim_mark_release(struct sim_mark *mark);
/* True if all items up to seq are done; on the legacy stream also those of the streams it synchronises with. */
bool sim_stream_done(const struct sim_stream *stream, uint64_t seq);
uint64_t sim_seq(void); /* the last sequence number assigned */

/* effects.c */
void sim_pending_add(void); /* an item has been submitted */
/* Runs what an item does when it starts, or when it completes (effect NULL: nothing). Done: it is no longer pending. */
void sim_effect(struct sim_item *item, void (*effect)(void *), bool done);

/* work.c */
/* sim_wait waits until done(arg) is true; bound(arg) gives the earliest time at which it can be. device: the device
 * whose lane is watched. Call without sim_lock. */
struct sim_condition {
  bool (*done)(const void *arg);
  uint64_t (*bound)(const void *arg, uint64_t now);
  const void *arg;
};
void sim_wait(CUdevice device, bool blocking, const struct sim_condition *condition);
void sim_worker_need(CUdevice device); /* starts the device's worker thread, or wakes it */
/* Append work (never to a capture). Requires sim_lock, which is dropped while the queue is full. Returns the item's
 * sequence number; 0: out of memory. waited: the caller waits for the item at once, so the worker need not attend it.
 * counted: the item takes a place in the stream's bounded queue. */
uint64_t sim_enqueue(struct sim_stream *stream, const struct sim_op *op, bool waited, bool counted);
uint64_t sim_enqueue_mark(struct sim_stream *stream, struct sim_mark *mark);
uint64_t sim_enqueue_wait(struct sim_stream *stream, struct sim_mark *mark);
void sim_wait_seq(struct sim_stream *stream, uint64_t seq); /* call without sim_lock */

#endif
