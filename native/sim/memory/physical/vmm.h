/* Shared by vmm.c (physical memory) and vmm_map.c (addresses). Requires sim_ranges_lock unless noted otherwise. */
#ifndef SIM_VMM_H
#define SIM_VMM_H

#include "sim/memory/memory.h"

struct physical {
  uint64_t id; /* the same for all imports of one memory in a process */
  uint64_t bytes, charged;
  struct sim_block block; /* once exported or imported */
  unsigned handles, mappings;
  unsigned bound;              /* number of bindings to multicast objects */
  struct multicast *multicast; /* not NULL: this is a multicast object, without memory of its own */
  CUmemAllocationProp prop;
  struct sim_pages pages; /* if the pages are part of the device's file, `at` is an otherwise unused mapping of them */
  bool own_file;
  struct physical *next;
};

struct binding {
  uint64_t offset, bytes;
  struct physical *memory;
  struct binding *next;
};
struct multicast {
  unsigned team;    /* number of devices it is for */
  uint32_t devices; /* added so far; one bit per device */
  struct binding *bindings;
};
void sim_binding_end(struct binding **at); /* also removes it from its list */

struct physical *sim_physical_of(CUmemGenericAllocationHandle handle); /* NULL: not a live handle */
CUdevice sim_physical_device(const CUmemAllocationProp *prop);
void sim_physical_check(struct physical *physical); /* frees it if no handle and no mapping refers to it */

/* takes the lock itself */
CUresult sim_physical_add(const struct physical *made, CUmemGenericAllocationHandle *handle);
/* Holds the memory of an exported descriptor: its file (owned by the caller), size and device (this process's ordinal).
 * INVALID_VALUE: not an exported descriptor. */
CUresult sim_physical_file(int exported, struct sim_block *block, int *fd, uint64_t *bytes, CUdevice *device);

#endif
