/* The table behind cuGetProcAddress, generated: sorted by base, then version, then variant. */
#ifndef SIM_PROCS_H
#define SIM_PROCS_H

struct sim_proc {
  const char *base;
  int version;    /* the CUDA version that introduced this form */
  int per_thread; /* 1: the _ptds/_ptsz form */
  void *function;
};
extern const struct sim_proc sim_procs[];
extern const unsigned sim_nprocs;

#endif
