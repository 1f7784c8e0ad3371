/* cuGetProcAddress and cuGetExportTable (lookup of functions by name and version), and the driver's version. */
#include <string.h>

#include "sim/model/model.h"
#include "sim/api/sim_procs.h"

CUresult cuDriverGetVersion(int *driverVersion) {
  if (driverVersion == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *driverVersion = SIM_CUDA_VERSION;
  return CUDA_SUCCESS;
}

/* The first entry with this base, or NULL. The table is sorted by base. */
static const struct sim_proc *first_of(const char *base) {
  unsigned low = 0, high = sim_nprocs;
  while (low < high) {
    unsigned middle = (low + high) / 2;
    if (strcmp(sim_procs[middle].base, base) < 0)
      low = middle + 1;
    else
      high = middle;
  }
  return low < sim_nprocs && strcmp(sim_procs[low].base, base) == 0 ? &sim_procs[low] : NULL;
}

/* Finds the newest variant not newer than the requested version; the per-thread variant if requested and available. A
 * version newer than this driver's finds nothing, because its variants are unknown here. */
static CUdriverProcAddressQueryResult find(const char *base, int version, bool per_thread, void **function) {
  const struct sim_proc *proc = first_of(base), *end = sim_procs + sim_nprocs;
  const struct sim_proc *found[2] = {NULL, NULL};
  *function = NULL;
  if (proc == NULL)
    return CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  if (version > SIM_CUDA_VERSION)
    return CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
  for (; proc < end && strcmp(proc->base, base) == 0; proc++)
    if (proc->version <= version)
      found[proc->per_thread] = proc;
  const struct sim_proc *best = per_thread && found[1] ? found[1] : found[0];
  if (best == NULL)
    return CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
  *function = best->function;
  return CU_GET_PROC_ADDRESS_SUCCESS;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *symbolStatus) {
  if (symbol == NULL || pfn == NULL || flags & ~3ull || flags == 3)
    return CUDA_ERROR_INVALID_VALUE;
  CUdriverProcAddressQueryResult status =
      find(symbol, cudaVersion, flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, pfn);
  if (symbolStatus)
    *symbolStatus = status;
  return status == CU_GET_PROC_ADDRESS_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags) {
  return cuGetProcAddress_v2(symbol, pfn, cudaVersion, flags, NULL);
}

/* Export tables are not part of the public API, and none are provided. */
CUresult cuGetExportTable(const void **ppExportTable, const CUuuid *pExportTableId) {
  if (ppExportTable == NULL || pExportTableId == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *ppExportTable = NULL;
  return CUDA_ERROR_NOT_FOUND;
}

CUresult cuProfilerStart(void) { return CUDA_SUCCESS; }
CUresult cuProfilerStop(void) { return CUDA_SUCCESS; }
