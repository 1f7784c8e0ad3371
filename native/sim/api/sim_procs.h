/* Generated tables: the one for cuGetProcAddress, sorted by base, then version, then variant; and all names. */
#ifndef SIM_PROCS_H
#define SIM_PROCS_H

struct sim_proc {
  const char *base;
  int version;    /* the CUDA version that introduced this variant */
  int per_thread; /* 1: the _ptds/_ptsz variant */
  void *function;
};
extern const struct sim_proc sim_procs[];
extern const unsigned sim_nprocs;

/* graphics.c: the answer of each function that needs a display, a CUresult */
int sim_no_display(void);

extern const char *const sim_exports[]; /* the name of every exported driver function */
extern const unsigned sim_nexports;

#endif
