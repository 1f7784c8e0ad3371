/* What vmm.c (physical memory) and vmm_map.c (addresses) share. All under sim_ranges_lock. */
#ifndef SIM_VMM_H
#define SIM_VMM_H

#include "sim/memory/memory.h"

struct physical {
  uint64_t id, bytes, charged;
  unsigned handles, mappings;
  unsigned bound;              /* how often it is bound to a multicast object */
  struct multicast *multicast; /* set: this is one, without memory */
  CUmemAllocationProp prop;
  struct sim_pages pages; /* `at` is a mapping nobody uses where the pages are a piece of the device's file */
  bool own_file;
  struct physical *next;
};

struct binding {
  uint64_t offset, bytes;
  struct physical *memory;
  struct binding *next;
};
struct multicast {
  unsigned team;    /* devices it is for */
  uint32_t devices; /* added so far, a bit each */
  struct binding *bindings;
};
void sim_binding_end(struct binding **at); /* takes it off its list */

struct physical *sim_physical_of(CUmemGenericAllocationHandle handle); /* NULL: not a live handle */
CUdevice sim_physical_device(const CUmemAllocationProp *prop);
void sim_physical_check(struct physical *physical); /* frees it if no handle and no mapping is left */

/* takes the lock itself */
CUresult sim_physical_add(const struct physical *made, CUmemGenericAllocationHandle *handle);
/* An exported file: its bytes and the device they are on, as this process numbers it. False: it is none. */
bool sim_physical_file(int fd, uint64_t *bytes, CUdevice *device);

#endif
