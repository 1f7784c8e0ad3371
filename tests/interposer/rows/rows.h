/* The rows of hooks.tsv are called by snippets: `void row_<symbol>(struct rows *r)` sets up its objects through the
 * linked functions of the driver, calls its function through start(r)-> or work(r)->, and checks the result. Functions
 * that differ only in their types, their default stream or whether they take one share a snippet (gen_rows.py).
 *
 * The program is synchronised with the test: it prints a JSON line at each point that the test inspects ("at") and
 * continues when it reads a line. It prints one line per row ("row", "result", "ok" ...) when the row is done. */
#ifndef ROWS_H
#define ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "api.h" /* generated */

struct row {
  const char *group, *symbol, *base;
  int version;
  bool per_thread; /* its default stream is the calling thread's */
  bool takes_stream;
  bool narrow;           /* addresses of 32 bits */
  size_t own_slot, slot; /* in struct calls: of its pointer, and of the pointer that the snippet calls */
  void *linked;
  void *adapter; /* what the snippet calls, if not the function itself */
  void (*snippet)(struct rows *r);
};
extern const struct row row_table[];
extern const unsigned row_count;
extern struct calls own_call; /* the row's own function, for adapters */

struct rows {
  const struct row *row;
  struct calls call; /* the row's function, found in the way under test, as the snippet calls it; all others are NULL */
  CUdevice device;
  CUcontext ctx;
  CUstream stream;
  bool gated;     /* the test revokes the lease and gives it only to calls announced by work() */
  bool tentative; /* the driver may refuse: then only the equality with the direct run proves the row */
  bool refused;
  bool submits; /* the next call was announced by work() */
  int occupied; /* open captures and held streams: memory cannot be moved meanwhile */
  bool failed;
  CUresult result; /* of the first call */
  unsigned calls;
  /* of the first call, as counted on the grant's page: answers that it waited for, bytes to the device and from it */
  uint64_t answers, bytes_in, bytes_out;
  /* launches of this process over the row: announced by lease() and work(), and counted on the grant's page */
  uint64_t expected, counted;
  int64_t charged_alloc, charged_free;
  char why[256];
};

/* ---- rows.c ---- */

/* The row's function: start() for a call that must not need a lease nor count as a launch, work() for a call that uses
 * the device. */
const struct calls *start(struct rows *r);
const struct calls *work(struct rows *r);
/* To be called after each of its calls. True: the result was CUDA_SUCCESS, as required. */
bool done(struct rows *r, CUresult result);
/* The same for calls with another expected result. */
bool done_with(struct rows *r, CUresult wanted, CUresult result);
/* To be called before a helper submits work to the device, once per submission. */
void lease(struct rows *r);
/* The test compares page and simulator now: "allocated" or "freed". */
void meet(struct rows *r, const char *at);
void expect(struct rows *r, bool condition, const char *what);
/* A setup step; the process exits if it fails. */
void need(struct rows *r, CUresult result, const char *what);
void same(struct rows *r, const void *got, const void *wanted, size_t bytes, const char *what);

/* ---- support.c ---- */

enum {
  /* long enough for a copy over the link to be marked (LONG_COPY_BYTES of copies.c), and for the memory to be movable
   * where the grant lends it (GS_MOVABLE_ABOVE) */
  BYTES = 1088 << 10,
  PITCH = 1024,     /* bytes per row; divides BYTES */
  GRANULE = 2 << 20 /* of physical memory */
};

CUcontext context(struct rows *r); /* current; created on first use, destroyed after the row */
CUstream stream(struct rows *r); /* in that context: the row's default stream, or one that is destroyed after the row */
CUstream given(struct rows *r);  /* the same as an argument of the row's function */
/* Device memory of at least BYTES; for functions with 32-bit addresses at one that they can use. */
CUdeviceptr memory(struct rows *r, size_t bytes);
CUmemGenericAllocationHandle physical(struct rows *r, CUmemAllocationHandleType kind); /* memory of GRANULE bytes */
CUevent new_event(struct rows *r);                                                     /* of the current context */
CUgraph empty_graph(struct rows *r);
CUarray array_1d(struct rows *r); /* of BYTES */
CUarray array_2d(struct rows *r); /* of BYTES in rows of PITCH bytes */
unsigned char *zeroes(void);      /* BYTES of zeroed host memory, a different buffer with each call */
unsigned char *pattern(void);     /* BYTES to be copied */
void put(struct rows *r, CUdeviceptr to, const void *from, size_t bytes); /* over the link, without a lease */
void holds(struct rows *r, CUdeviceptr at, const void *wanted, size_t bytes);
void array_holds(struct rows *r, CUarray array, const void *wanted);
void put_array(struct rows *r, CUarray array, const void *from);
void settle(struct rows *r); /* waits for the context */

/* A kernel that takes `ns`, and the events before and after it. */
struct kernel {
  CUmodule module;
  CUfunction function;
  uint64_t ns;
  void *params[1];
  CUstream stream;
  CUevent before, after;
};
/* Fills *k, which must not move, and records the event before. */
void kernel_ready(struct rows *r, struct kernel *k, CUstream on);
/* Asserts that it ran for its time. */
void kernel_ran(struct rows *r, struct kernel *k);

/* Work submitted to `on` between the two becomes a graph of `nodes` nodes. */
void capture(struct rows *r, CUstream on);
CUgraph captured(struct rows *r, CUstream on, size_t nodes);
/* Begins a capture of the row's stream, if its function takes one. */
bool captured_too(struct rows *r);
CUgraphExec instantiated(struct rows *r, CUgraph graph);
/* A graph of the kernel, captured in its stream; and a launch of it there. */
CUgraph kernel_graph(struct rows *r, struct kernel *k);
void graph_runs(struct rows *r, CUgraphExec exec, struct kernel *k);

/* Blocks a stream until it is opened: later work in it does not run. */
struct hold {
  struct rows *r;
  uint32_t *flag;
  CUstream on;
};
struct hold hold(struct rows *r, CUstream on);
void let_go(struct hold *held);

/* ---- control.c ---- */
void control_start(void);

/* ---- exporter.c ---- */

/* Another process of the same program that shares memory with this one. */
struct exporter {
  int socket, fd; /* fd: of its pool, opened here, or -1 */
  int pid;
  unsigned char bytes[64];
  CUresult result; /* the result of its driver call */
};
struct exporter exporter_start(struct rows *r, const char *what);
void exporter_end(struct exporter *other);
int exporter_main(const char *what, int socket);

/* ---- copying ---- */

enum { HALF = BYTES / 2, ACCESS_IN_STREAM = 1 };

struct copy {
  CUdeviceptr from, to;
  CUarray array_from, array_to;
  unsigned char *host_from, *host_to;
};
/* Sources of BYTES of each kind, filled with the pattern, and zeroed destinations. */
struct copy copy_ready(struct rows *r);
/* Asserts that the pattern is at the destination once the context's work is done. */
void on_device(struct rows *r, const struct copy *c);
void in_array(struct rows *r, const struct copy *c);
void on_host(struct rows *r, const struct copy *c);
CUdeviceptr number(const void *at); /* a host address as unified functions take it */

#endif
