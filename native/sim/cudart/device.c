/* Devices: properties, attributes, limits, peers, synchronisation. */
#include "sim/cudart/cudart.h"

#include <stdlib.h>
#include <string.h>

static cudaError_t valid(int device, const void *out) {
  cudaError_t error = rt_start();
  if (error != cudaSuccess)
    return error;
  if (!out)
    return rt_fail(cudaErrorInvalidValue);
  return device >= 0 && device < rt_device_count() ? cudaSuccess : rt_fail(cudaErrorInvalidDevice);
}

cudaError_t cudaGetDeviceCount(int *count) {
  cudaError_t error = rt_start();
  if (error != cudaSuccess)
    return error;
  if (!count)
    return rt_fail(cudaErrorInvalidValue);
  *count = rt_device_count();
  return cudaSuccess;
}

/* The runtime uses the same numbers for attributes as the driver. */

/* CUDA 13 dropped some fields. */
#if RT_MAJOR == 12
#define ONLY_12(...) __VA_ARGS__;
#else
#define ONLY_12(...)
#endif
/* clang-format off */
struct cudaDeviceProp {
  char name[256];
  CUuuid uuid;
  char luid[8];
  unsigned luid_device_node_mask;
  size_t total_global_mem, shared_mem_per_block;
  int regs_per_block, warp_size;
  size_t mem_pitch;
  int max_threads_per_block, max_threads_dim[3], max_grid_size[3];
  ONLY_12(int clock_rate)
  size_t total_const_mem;
  int major, minor;
  size_t texture_alignment, texture_pitch_alignment;
  ONLY_12(int device_overlap)
  int multi_processor_count;
  ONLY_12(int kernel_exec_timeout_enabled)
  int integrated, can_map_host_memory;
  ONLY_12(int compute_mode)
  int max_texture_1d, max_texture_1d_mipmap;
  ONLY_12(int max_texture_1d_linear)
  int max_texture_2d[2], max_texture_2d_mipmap[2], max_texture_2d_linear[3];
  int max_texture_2d_gather[2], max_texture_3d[3], max_texture_3d_alt[3], max_texture_cubemap,
      max_texture_1d_layered[2];
  int max_texture_2d_layered[3], max_texture_cubemap_layered[2];
  int max_surface_1d, max_surface_2d[2], max_surface_3d[3], max_surface_1d_layered[2], max_surface_2d_layered[3];
  int max_surface_cubemap, max_surface_cubemap_layered[2];
  size_t surface_alignment;
  int concurrent_kernels, ecc_enabled, pci_bus_id, pci_device_id, pci_domain_id, tcc_driver, async_engine_count;
  int unified_addressing;
  ONLY_12(int memory_clock_rate)
  int memory_bus_width, l2_cache_size, persisting_l2_cache_max_size,
      max_threads_per_multi_processor;
  int stream_priorities_supported, global_l1_cache_supported, local_l1_cache_supported;
  size_t shared_mem_per_multiprocessor;
  int regs_per_multiprocessor, managed_memory, is_multi_gpu_board, multi_gpu_board_group_id,
      host_native_atomic_supported;
  ONLY_12(int single_to_double_precision_perf_ratio)
  int pageable_memory_access, concurrent_managed_access, compute_preemption_supported,
      can_use_host_pointer_for_registered_mem;
  int cooperative_launch;
  ONLY_12(int cooperative_multi_device_launch)
  size_t shared_mem_per_block_optin;
  int pageable_memory_access_uses_host_page_tables, direct_managed_mem_access_from_host, max_blocks_per_multi_processor;
  int access_policy_max_window_size;
  size_t reserved_shared_mem_per_block;
  int host_register_supported, sparse_cuda_array_supported, host_register_read_only_supported;
  int timeline_semaphore_interop_supported, memory_pools_supported, gpu_direct_rdma_supported;
  unsigned gpu_direct_rdma_flush_writes_options;
  int gpu_direct_rdma_writes_ordering;
  unsigned memory_pool_supported_handle_types;
  int deferred_mapping_cuda_array_supported, ipc_event_supported, cluster_launch, unified_function_pointers;
#if RT_MAJOR == 12
  int reserved[63];
#else
  int device_numa_config, device_numa_id, mps_enabled, host_numa_id;
  unsigned gpu_pci_device_id, gpu_pci_subsystem_id;
  int host_numa_multinode_ipc_supported;
  int reserved[56];
#endif
};
/* clang-format on */
_Static_assert(sizeof(struct cudaDeviceProp) == (RT_MAJOR == 12 ? 1032 : 1008), "cudaDeviceProp");

/* The first CU_DEVICE_ATTRIBUTE_* of those that fill a field, an int or an array of them; or the field is one size_t. */
#define SIZE(field) sizeof((struct cudaDeviceProp *)NULL)->field
#define NUMBER(attribute, field) {attribute, offsetof(struct cudaDeviceProp, field), SIZE(field) / sizeof(int), false}
#define BYTES(attribute, field) {attribute, offsetof(struct cudaDeviceProp, field), 1, true}
static const struct {
  int attribute;
  size_t field;
  int count;
  bool bytes;
} filled[] = {
    NUMBER(1, max_threads_per_block),
    NUMBER(2, max_threads_dim),
    NUMBER(5, max_grid_size),
    BYTES(8, shared_mem_per_block),
    BYTES(9, total_const_mem),
    NUMBER(10, warp_size),
    BYTES(11, mem_pitch),
    NUMBER(12, regs_per_block),
    BYTES(14, texture_alignment),
    NUMBER(16, multi_processor_count),
    NUMBER(18, integrated),
    NUMBER(19, can_map_host_memory),
    NUMBER(21, max_texture_1d),
    NUMBER(22, max_texture_2d),
    NUMBER(24, max_texture_3d),
    NUMBER(27, max_texture_2d_layered),
    BYTES(30, surface_alignment),
    NUMBER(31, concurrent_kernels),
    NUMBER(32, ecc_enabled),
    NUMBER(33, pci_bus_id),
    NUMBER(34, pci_device_id),
    NUMBER(35, tcc_driver),
    NUMBER(37, memory_bus_width),
    NUMBER(38, l2_cache_size),
    NUMBER(39, max_threads_per_multi_processor),
    NUMBER(40, async_engine_count),
    NUMBER(41, unified_addressing),
    NUMBER(42, max_texture_1d_layered),
    NUMBER(45, max_texture_2d_gather),
    NUMBER(47, max_texture_3d_alt),
    NUMBER(50, pci_domain_id),
    BYTES(51, texture_pitch_alignment),
    NUMBER(52, max_texture_cubemap),
    NUMBER(53, max_texture_cubemap_layered),
    NUMBER(55, max_surface_1d),
    NUMBER(56, max_surface_2d),
    NUMBER(58, max_surface_3d),
    NUMBER(61, max_surface_1d_layered),
    NUMBER(63, max_surface_2d_layered),
    NUMBER(66, max_surface_cubemap),
    NUMBER(67, max_surface_cubemap_layered),
    NUMBER(70, max_texture_2d_linear),
    NUMBER(73, max_texture_2d_mipmap),
    NUMBER(75, major),
    NUMBER(76, minor),
    NUMBER(77, max_texture_1d_mipmap),
    NUMBER(78, stream_priorities_supported),
    NUMBER(79, global_l1_cache_supported),
    NUMBER(80, local_l1_cache_supported),
    BYTES(81, shared_mem_per_multiprocessor),
    NUMBER(82, regs_per_multiprocessor),
    NUMBER(83, managed_memory),
    NUMBER(84, is_multi_gpu_board),
    NUMBER(85, multi_gpu_board_group_id),
    NUMBER(86, host_native_atomic_supported),
    NUMBER(88, pageable_memory_access),
    NUMBER(89, concurrent_managed_access),
    NUMBER(90, compute_preemption_supported),
    NUMBER(91, can_use_host_pointer_for_registered_mem),
    NUMBER(95, cooperative_launch),
    BYTES(97, shared_mem_per_block_optin),
    NUMBER(99, host_register_supported),
    NUMBER(100, pageable_memory_access_uses_host_page_tables),
    NUMBER(101, direct_managed_mem_access_from_host),
    NUMBER(106, max_blocks_per_multi_processor),
    NUMBER(108, persisting_l2_cache_max_size),
    NUMBER(109, access_policy_max_window_size),
    BYTES(111, reserved_shared_mem_per_block),
    NUMBER(112, sparse_cuda_array_supported),
    NUMBER(113, host_register_read_only_supported),
    NUMBER(114, timeline_semaphore_interop_supported),
    NUMBER(115, memory_pools_supported),
    NUMBER(116, gpu_direct_rdma_supported),
    NUMBER(117, gpu_direct_rdma_flush_writes_options),
    NUMBER(118, gpu_direct_rdma_writes_ordering),
    NUMBER(119, memory_pool_supported_handle_types),
    NUMBER(120, cluster_launch),
    NUMBER(121, deferred_mapping_cuda_array_supported),
    NUMBER(125, ipc_event_supported),
    NUMBER(129, unified_function_pointers),
#if RT_MAJOR == 12
    NUMBER(13, clock_rate),
    NUMBER(15, device_overlap),
    NUMBER(17, kernel_exec_timeout_enabled),
    NUMBER(20, compute_mode),
    NUMBER(36, memory_clock_rate),
    NUMBER(69, max_texture_1d_linear),
    NUMBER(87, single_to_double_precision_perf_ratio),
    NUMBER(96, cooperative_multi_device_launch),
#else
    NUMBER(130, device_numa_config),
    NUMBER(131, device_numa_id),
    NUMBER(133, mps_enabled),
    NUMBER(134, host_numa_id),
    NUMBER(139, gpu_pci_device_id),
    NUMBER(140, gpu_pci_subsystem_id),
    NUMBER(143, host_numa_multinode_ipc_supported),
#endif
};

static CUresult fill(struct cudaDeviceProp *out, CUdevice device) {
  CUresult result = rt_driver.cuDeviceGetName(out->name, sizeof out->name, device);
  if (result == CUDA_SUCCESS)
    result = rt_driver.cuDeviceGetUuid_v2(&out->uuid, device);
  if (result == CUDA_SUCCESS)
    result = rt_driver.cuDeviceTotalMem_v2(&out->total_global_mem, device);
  for (size_t i = 0; i < sizeof filled / sizeof filled[0]; i++)
    for (int n = 0; n < filled[i].count && result == CUDA_SUCCESS; n++) {
      int value = 0;
      result = rt_driver.cuDeviceGetAttribute(&value, filled[i].attribute + n, device);
      size_t wide = (size_t)value;
      char *field = (char *)out + filled[i].field + (size_t)n * sizeof value;
      if (filled[i].bytes)
        memcpy(field, &wide, sizeof wide);
      else
        memcpy(field, &value, sizeof value);
    }
  return result;
}

static cudaError_t properties(struct cudaDeviceProp *out, int device) {
  cudaError_t error = valid(device, out);
  if (error != cudaSuccess)
    return error;
  memset(out, 0, sizeof *out);
  return rt_done(fill(out, device));
}

#if RT_MAJOR == 12
cudaError_t cudaGetDeviceProperties_v2(struct cudaDeviceProp *out, int device) { return properties(out, device); }

/* The structure of CUDA 11 is that of CUDA 12 up to this field. */
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device) {
  struct cudaDeviceProp all;
  cudaError_t error = properties(out ? &all : NULL, device);
  if (error == cudaSuccess)
    memcpy(out, &all, offsetof(struct cudaDeviceProp, host_register_supported));
  return error;
}
#else
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device) { return properties(out, device); }
#endif

/* The device with the most of the wanted properties; the first of several such. */
cudaError_t cudaChooseDevice(int *device, const struct cudaDeviceProp *wanted) {
  struct cudaDeviceProp has;
  int best = -1;
  cudaError_t error = valid(0, device && wanted ? device : NULL);
  for (int i = 0; error == cudaSuccess && i < rt_device_count(); i++) {
    error = properties(&has, i);
    int points = 100 * (has.major >= wanted->major) + (has.total_global_mem >= wanted->total_global_mem);
    if (error == cudaSuccess && points > best) {
      best = points;
      *device = i;
    }
  }
  return error;
}

/* ---- peers ------------------------------------------------------------------------------------------------------- */

/* Peer access is between contexts. The other device's primary context is retained for the duration of the call. */
static cudaError_t with_peer(int peer, CUresult (*call)(CUcontext)) {
  CUcontext context;
  cudaError_t error = rt_enter();
  if (error != cudaSuccess)
    return error;
  if (peer < 0 || peer >= rt_device_count())
    return rt_fail(cudaErrorInvalidDevice);
  CUresult result = rt_driver.cuDevicePrimaryCtxRetain(&context, peer);
  if (result != CUDA_SUCCESS)
    return rt_done(result);
  result = call(context);
  rt_driver.cuDevicePrimaryCtxRelease_v2(peer);
  return rt_done(result);
}

static CUresult enable(CUcontext context) { return rt_driver.cuCtxEnablePeerAccess(context, 0); }

static CUresult disable(CUcontext context) { return rt_driver.cuCtxDisablePeerAccess(context); }

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  return flags ? rt_fail(cudaErrorInvalidValue) : with_peer(peer, enable);
}

cudaError_t cudaDeviceDisablePeerAccess(int peer) { return with_peer(peer, disable); }

/* ---- versions and the driver's functions ------------------------------------------------------------------------- */

cudaError_t cudaRuntimeGetVersion(int *version) {
  if (!version)
    return rt_fail(cudaErrorInvalidValue);
  *version = RT_VERSION;
  return cudaSuccess;
}

/* Without a driver the version is 0, and the call succeeds. */
cudaError_t cudaDriverGetVersion(int *version) {
  if (!version)
    return rt_fail(cudaErrorInvalidValue);
  *version = 0;
  if (rt_start() == cudaErrorInsufficientDriver)
    return cudaSuccess;
  return rt_done(rt_driver.cuDriverGetVersion(version));
}

static cudaError_t entry_point(const char *name, void **function, int version, uint64_t flags, int *status) {
  cuuint64_t default_stream =
      rt_per_thread ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : CU_GET_PROC_ADDRESS_LEGACY_STREAM;
  int found = 0;
  cudaError_t error = rt_start();
  if (error != cudaSuccess)
    return error;
  if (!name || !function)
    return rt_fail(cudaErrorInvalidValue);
  *function = rt_driver_symbol(name, version, flags ? flags : default_stream, &found);
  if (status)
    *status = found;
  return cudaSuccess; /* the result of the lookup is in *status */
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                             unsigned long long flags, int *status) {
  return entry_point(name, function, (int)version, flags, status);
}
/* The newest variant that both this runtime and the driver know: a driver finds nothing for a version newer than its
 * own. */
cudaError_t cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags, int *status) {
  int driver = 0;
  cudaError_t error = cudaDriverGetVersion(&driver);
  return error == cudaSuccess ? entry_point(name, function, driver < RT_VERSION ? driver : RT_VERSION, flags, status)
                              : error;
}

cudaError_t cudaDeviceReset(void) {
  CUdevice device;
  cudaError_t error = rt_start();
  if (error != cudaSuccess)
    return error;
  bool retained = rt_device_forget(&device);
  CUresult result = rt_driver.cuDevicePrimaryCtxReset_v2(device);
  if (retained)
    rt_driver.cuDevicePrimaryCtxRelease_v2(device);
  rt_symbols_reset(device);
  return rt_done(result);
}

#if RT_MAJOR == 12
cudaError_t cudaThreadExit(void) { return cudaDeviceReset(); }

/* Obsolete: devices support double precision, so the value stays unchanged. */
cudaError_t cudaSetDoubleForDevice(double *d) { return d ? cudaSuccess : rt_fail(cudaErrorInvalidValue); }
cudaError_t cudaSetDoubleForHost(double *d) { return d ? cudaSuccess : rt_fail(cudaErrorInvalidValue); }
#endif
