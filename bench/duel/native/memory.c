/* Memory over the limit: two threads on one object. */
#include "duel.h"

enum { BLOCK = 64 * MIB };

static CUmemAllocationProp device_memory(void) {
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  return prop;
}

static CUdeviceptr address(void) {
  CUdeviceptr at;
  MUST(cuMemAddressReserve(&at, BLOCK, 0, 0, 0));
  return at;
}

static CUmemGenericAllocationHandle shared_handle;
static uint32_t turn;

static void *releases(void *unused) {
  (void)unused;
  MUST(cuCtxSetCurrent(duel.context));
  for (uint32_t seen = 0;; seen++) {
    while (__atomic_load_n(&turn, __ATOMIC_ACQUIRE) == seen) {
    }
    cuMemRelease(shared_handle);
  }
  return NULL;
}

/* One thread releases a handle while another maps it; what got mapped stays. */
static void release_map(void) {
  CUmemAllocationProp prop = device_memory();
  thread(releases, NULL);
  begin();
  for (;;) {
    CUdeviceptr at = address();
    if (cuMemCreate(&shared_handle, BLOCK, &prop, 0) != CUDA_SUCCESS) {
      MUST(cuMemAddressFree(at, BLOCK));
      sleep_ns(MS);
      continue;
    }
    __atomic_add_fetch(&turn, 1, __ATOMIC_RELEASE);
    if (cuMemMap(at, BLOCK, 0, shared_handle, 0) != CUDA_SUCCESS)
      MUST(cuMemAddressFree(at, BLOCK));
  }
}

const struct evasion memory_evasions[] = {
    {.name = "release-map", .about = "cuMemRelease against cuMemMap of one handle", .run = release_map},
    {0},
};
