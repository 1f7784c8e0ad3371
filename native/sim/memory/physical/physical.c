/* Physical memory handles, and release of memory with no remaining reference. */
#include <stdlib.h>
#include <unistd.h>

#include "sim/memory/physical/vmm.h"

/* Guarded by sim_ranges_lock. */
static struct {
  struct physical *physicals;
  uint64_t ids;
} all;

uint64_t sim_physical_id(const void *physical) { return ((const struct physical *)physical)->id; }

int sim_physical_handle_types(const void *physical) {
  return ((const struct physical *)physical)->prop.requestedHandleTypes;
}

struct physical *sim_physical_of(CUmemGenericAllocationHandle handle) {
  for (struct physical *each = all.physicals; each; each = each->next)
    if ((uint64_t)(uintptr_t)each == handle)
      return each->handles ? each : NULL;
  return NULL;
}

static bool on_device(const CUmemAllocationProp *prop) { return prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE; }

CUdevice sim_physical_device(const CUmemAllocationProp *prop) { return on_device(prop) ? prop->location.id : 0; }

static void multicast_free(struct multicast *multicast);

static void physical_free(struct physical *physical) {
  struct physical **link = &all.physicals;
  while (*link != physical)
    link = &(*link)->next;
  *link = physical->next;
  if (physical->multicast)
    multicast_free(physical->multicast);
  else if (physical->own_file)
    close(physical->pages.fd);
  else
    sim_pages_free(&physical->pages, false);
  sim_charge_end(&physical->block, sim_physical_device(&physical->prop), physical->charged);
  free(physical);
}

void sim_physical_check(struct physical *physical) {
  if (physical->handles == 0 && physical->mappings == 0 && physical->bound == 0)
    physical_free(physical);
}

/* The id of the memory if this process already has a handle to it, else a new id. */
static uint64_t id_of_block(const struct sim_block *block) {
  for (const struct physical *each = all.physicals; each && block->id; each = each->next)
    if (each->block.id == block->id)
      return each->id;
  return ++all.ids;
}

CUresult sim_physical_add(const struct physical *made, CUmemGenericAllocationHandle *handle) {
  struct physical *kept = malloc(sizeof *kept);
  if (!kept)
    return CUDA_ERROR_OUT_OF_MEMORY;
  *kept = *made;
  sim_ranges_lock();
  kept->id = id_of_block(&made->block);
  kept->handles = 1;
  kept->next = all.physicals;
  all.physicals = kept;
  sim_ranges_unlock();
  *handle = (uint64_t)(uintptr_t)kept;
  return CUDA_SUCCESS;
}

void sim_physicals_sum(CUdevice device, struct sim_sum *sum) {
  for (const struct physical *each = all.physicals; each; each = each->next)
    if (sim_physical_device(&each->prop) == device)
      sim_sum_add(sum, &each->block, each->charged);
}

void sim_binding_end(struct binding **at) {
  struct binding *gone = *at;
  *at = gone->next;
  gone->memory->bound--;
  sim_physical_check(gone->memory);
  free(gone);
}

static void multicast_free(struct multicast *multicast) {
  while (multicast->bindings)
    sim_binding_end(&multicast->bindings);
  free(multicast);
}
