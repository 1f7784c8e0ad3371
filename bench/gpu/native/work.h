/* Units of work whose device time is known from a calibration: what the load program submits. */
#ifndef BENCH_WORK_H
#define BENCH_WORK_H

#include "calibrate.h"
#include "driver.h"

enum { DEPTH_MAX = 64, DATA_BYTES = 256 << 20 };

/* What one unit is. */
struct unit {
  unsigned kernels; /* launches; 0 with `copy` only */
  /* device time of each in a row of them that has the device to itself, launch and end included */
  uint64_t kernel_ns;
  uint64_t gap_ns;   /* host time between two launches: a launch-bound program */
  bool graph;        /* the launches as one graph */
  size_t copy;       /* bytes from pinned host memory, before the launches */
  unsigned depth;    /* units in flight before the oldest is waited for */
  uint64_t pause_ns; /* between two units, nothing in flight: think time */
  bool wake;         /* time the first launch of each unit by itself */
};

struct kernel {
  CUfunction function;
  bool timed; /* its argument is nanoseconds (the simulated device), not iterations */
  struct calibration cost;
  unsigned grid, block;
  CUdeviceptr data;
  uint64_t floats;
};

struct flight {
  CUevent begin, end;
  uint64_t submitted; /* host time */
};

struct worker {
  CUcontext context;
  CUdevice device;
  CUmodule module;
  CUstream stream;
  struct kernel kernel;
  struct flight flight[DEPTH_MAX];
  unsigned long head, tail; /* units submitted and finished, ever */
  CUgraphExec graph;
  struct unit captured; /* what `graph` holds */
  void *host;
  CUdeviceptr landing;
  size_t host_bytes;
  CUevent first;
};

void work_start(struct worker *w, int ordinal, const char *module, const char *kernel, struct calibration cost);
/* From now on a unit's time is as measured now; the device must be otherwise idle. False: it could not be measured. */
bool work_calibrate(struct worker *w);
/* Submits one unit. Gives the nanoseconds from wanting the device to the end of the first launch where the unit asks
 * for it. */
uint64_t work_submit(struct worker *w, const struct unit *unit);
/* Waits for the oldest unit: its time between events around it, and from its submission to its end, as the host saw it. */
void work_reap(struct worker *w, double *span_ns, double *latency_ns);

#endif
