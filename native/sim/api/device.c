/* Devices and their properties: those of the card, and those that CUDA guarantees for its compute capability. */
#include <stdio.h>
#include <string.h>

#include "sim/memory/memory.h"
#include "sim/model/card.h"
#include "sim/model/model.h"

static CUresult check(const void *out, CUdevice device) {
  if (out == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  return sim_device_valid(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetCount(int *count) {
  CUresult result = check(count, 0);
  if (result == CUDA_SUCCESS)
    *count = (int)sim_hello.ndevices;
  return result;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  CUresult result = check(device, ordinal);
  if (result == CUDA_SUCCESS)
    *device = ordinal;
  return result;
}

CUresult cuDeviceGetName(char *name, int len, CUdevice dev) {
  CUresult result = check(name, dev);
  if (result)
    return result;
  if (len <= 0)
    return CUDA_ERROR_INVALID_VALUE;
  snprintf(name, (size_t)len, "%s", sim_hello.device[dev].name);
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev) {
  CUresult result = check(bytes, dev);
  if (result == CUDA_SUCCESS)
    *bytes = sim_hello.device[dev].total_bytes;
  return result;
}

CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice dev) {
  CUresult result = check(bytes, dev);
  if (result)
    return result;
  uint64_t total = sim_hello.device[dev].total_bytes;
  *bytes = total > UINT32_MAX ? UINT32_MAX : (unsigned)total; /* the 32-bit variant cannot report more */
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev) {
  CUresult result = check(uuid, dev);
  if (result == CUDA_SUCCESS)
    memcpy(uuid->bytes, sim_hello.device[dev].uuid, sizeof uuid->bytes);
  return result;
}
CUresult cuDeviceGetLuid(char *luid, unsigned int *deviceNodeMask, CUdevice dev) {
  CUresult result = check(luid, dev);
  if (result)
    return result;
  return deviceNodeMask ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE; /* LUIDs exist on Windows only */
}

CUresult cuDeviceGetPCIBusId(char *pciBusId, int len, CUdevice dev) {
  CUresult result = check(pciBusId, dev);
  if (result)
    return result;
  const struct sim_device_info *info = &sim_hello.device[dev];
  int written = snprintf(pciBusId, len > 0 ? (size_t)len : 0, "%04X:%02X:%02X.0", info->pci_domain, info->pci_bus,
                         info->pci_device);
  return written < len ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetByPCIBusId(CUdevice *dev, const char *pciBusId) {
  CUresult result = check(dev, 0);
  unsigned domain = 0, bus, device;
  if (result)
    return result;
  if (pciBusId == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  if (sscanf(pciBusId, "%x:%x:%x", &domain, &bus, &device) != 3) {
    domain = 0;
    if (sscanf(pciBusId, "%x:%x", &bus, &device) != 2)
      return CUDA_ERROR_INVALID_VALUE;
  }
  for (uint32_t i = 0; i < sim_hello.ndevices; i++) {
    const struct sim_device_info *info = &sim_hello.device[i];
    if (info->pci_domain != domain || info->pci_bus != bus || info->pci_device != device)
      continue;
    *dev = (CUdevice)i;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_DEVICE;
}

/* Attributes not listed are 0: not supported. */
static const struct {
  CUdevice_attribute attribute;
  int value;
} attributes[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, SIM_MAX_THREADS},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, SIM_SHARED_DEFAULT},
    {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 65536},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, SIM_WARP},
    {CU_DEVICE_ATTRIBUTE_MAX_PITCH, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, SIM_REGISTERS},
    {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, SIM_CLOCK_KHZ},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1},
    {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, SIM_MULTIPROCESSORS},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH, 131072},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH, 131072},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT, 65536},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH, 16384},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT, 16384},
    {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH, 16384},
    {CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, SIM_MEMORY_CLOCK_KHZ},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, SIM_MEMORY_BITS},
    {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 41943040},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, SIM_THREADS},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 2}, /* one copy engine per direction */
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT, 32},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, SIM_CAPABILITY_MAJOR},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, SIM_CAPABILITY_MINOR},
    {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, SIM_SHARED},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, SIM_REGISTERS},
    {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO, 2},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR_V1, 1},
    {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, SIM_SHARED_OPTIN},
    {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, SIM_BLOCKS},
    {CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE, 31457280},
    {CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE, 134213632},
    {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, SIM_SHARED_RESERVED},
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, 1}, /* file descriptors */
    {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 1},
    {CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT, 1},
    {CU_DEVICE_ATTRIBUTE_NUMA_ID, -1},
    {CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, -1},
};
enum { NATTRIBUTES = sizeof attributes / sizeof attributes[0] };

CUresult cuDeviceGetAttribute(int *pi, CUdevice_attribute attrib, CUdevice dev) {
  CUresult result = check(pi, dev);
  if (result)
    return result;
  if (attrib <= 0 || attrib >= CU_DEVICE_ATTRIBUTE_MAX)
    return CUDA_ERROR_INVALID_VALUE;
  const struct sim_device_info *info = &sim_hello.device[dev];
  *pi = 0;
  for (int i = 0; i < NATTRIBUTES; i++)
    if (attributes[i].attribute == attrib)
      *pi = attributes[i].value;
  if (attrib == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)
    *pi = (int)info->pci_bus;
  if (attrib == CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)
    *pi = (int)info->pci_device;
  if (attrib == CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)
    *pi = (int)info->pci_domain;
  if (attrib == CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS)
    *pi = sim_pageable();
  if (attrib == CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED)
    *pi = (int)sim_hello.preempt;
  return CUDA_SUCCESS;
}

CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice dev) {
  CUresult result = check(major, dev);
  if (result)
    return result;
  if (minor == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  result = cuDeviceGetAttribute(major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, dev);
  return result ? result : cuDeviceGetAttribute(minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, dev);
}

CUresult cuDeviceGetProperties(CUdevprop *prop, CUdevice dev) {
  CUresult result = check(prop, dev);
  if (result)
    return result;
  *prop = (CUdevprop){.maxThreadsPerBlock = SIM_MAX_THREADS,
                      .maxThreadsDim = {1024, 1024, 64},
                      .maxGridSize = {2147483647, 65535, 65535},
                      .sharedMemPerBlock = SIM_SHARED_DEFAULT,
                      .totalConstantMemory = 65536,
                      .SIMDWidth = SIM_WARP,
                      .memPitch = 2147483647,
                      .regsPerBlock = SIM_REGISTERS,
                      .clockRate = SIM_CLOCK_KHZ,
                      .textureAlign = 512};
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetTexture1DLinearMaxWidth(size_t *maxWidthInElements, CUarray_format format, unsigned numChannels,
                                            CUdevice dev) {
  (void)format;
  CUresult result = check(maxWidthInElements, dev);
  if (result)
    return result;
  if (numChannels == 0 || numChannels > 4)
    return CUDA_ERROR_INVALID_VALUE;
  *maxWidthInElements = (1u << 28) / numChannels;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetExecAffinitySupport(int *pi, CUexecAffinityType type, CUdevice dev) {
  CUresult result = check(pi, dev);
  if (result)
    return result;
  if (type != 0)
    return CUDA_ERROR_INVALID_VALUE;
  *pi = 0;
  return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int *canAccessPeer, CUdevice dev, CUdevice peerDev) {
  CUresult result = check(canAccessPeer, dev);
  if (result)
    return result;
  if (!sim_device_valid(peerDev))
    return CUDA_ERROR_INVALID_DEVICE;
  *canAccessPeer = dev != peerDev;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attrib, CUdevice srcDevice, CUdevice dstDevice) {
  CUresult result = check(value, srcDevice);
  if (result)
    return result;
  if (!sim_device_valid(dstDevice) || srcDevice == dstDevice)
    return CUDA_ERROR_INVALID_DEVICE;
  if (attrib < CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK ||
      attrib > CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED)
    return CUDA_ERROR_INVALID_VALUE;
  *value = attrib == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED ||
           attrib == CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED;
  return CUDA_SUCCESS;
}

CUresult cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget target, CUflushGPUDirectRDMAWritesScope scope) {
  (void)target, (void)scope;
  struct sim_ctx *ctx;
  CUresult result = sim_ctx_need(&ctx);
  return result ? result : CUDA_ERROR_NOT_SUPPORTED;
}
