/* Devices: what they are and what they can. The numbers are those of a large data-centre GPU. */
#include <stdio.h>
#include <string.h>

#include "sim/model/model.h"

static CUresult check(const void *out, CUdevice device) {
  CUresult result = sim_ready();
  if (result)
    return result;
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
  *bytes = total > UINT32_MAX ? UINT32_MAX : (unsigned)total; /* the 32-bit form cannot say more */
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev) {
  CUresult result = check(uuid, dev);
  if (result == CUDA_SUCCESS)
    memcpy(uuid->bytes, sim_hello.device[dev].uuid, sizeof uuid->bytes);
  return result;
}
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev) { return cuDeviceGetUuid_v2(uuid, dev); }

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

/* CU_DEVICE_ATTRIBUTE_* by number; what is not listed is 0: not there. */
static const struct {
  CUdevice_attribute attribute;
  int value;
} attributes[] = {
    {1, 1024},                  /* MAX_THREADS_PER_BLOCK */
    {2, 1024},                  /* MAX_BLOCK_DIM_X */
    {3, 1024},                  /* MAX_BLOCK_DIM_Y */
    {4, 64},                    /* MAX_BLOCK_DIM_Z */
    {5, 2147483647},            /* MAX_GRID_DIM_X */
    {6, 65535},                 /* MAX_GRID_DIM_Y */
    {7, 65535},                 /* MAX_GRID_DIM_Z */
    {8, 49152},                 /* MAX_SHARED_MEMORY_PER_BLOCK */
    {9, 65536},                 /* TOTAL_CONSTANT_MEMORY */
    {10, 32},                   /* WARP_SIZE */
    {11, 2147483647},           /* MAX_PITCH */
    {12, 65536},                /* MAX_REGISTERS_PER_BLOCK */
    {13, 1410000},              /* CLOCK_RATE, kHz */
    {14, 512},                  /* TEXTURE_ALIGNMENT */
    {15, 1},                    /* GPU_OVERLAP */
    {16, 108},                  /* MULTIPROCESSOR_COUNT */
    {19, 1},                    /* CAN_MAP_HOST_MEMORY */
    {21, 131072},               /* MAXIMUM_TEXTURE1D_WIDTH */
    {22, 131072},               /* MAXIMUM_TEXTURE2D_WIDTH */
    {23, 65536},                /* MAXIMUM_TEXTURE2D_HEIGHT */
    {24, 16384},                /* MAXIMUM_TEXTURE3D_WIDTH */
    {25, 16384},                /* MAXIMUM_TEXTURE3D_HEIGHT */
    {26, 16384},                /* MAXIMUM_TEXTURE3D_DEPTH */
    {30, 512},                  /* SURFACE_ALIGNMENT */
    {31, 1},                    /* CONCURRENT_KERNELS */
    {36, 1215000},              /* MEMORY_CLOCK_RATE, kHz */
    {37, 5120},                 /* GLOBAL_MEMORY_BUS_WIDTH, bits */
    {38, 41943040},             /* L2_CACHE_SIZE */
    {39, 2048},                 /* MAX_THREADS_PER_MULTIPROCESSOR */
    {40, 2},                    /* ASYNC_ENGINE_COUNT: one copy engine each way */
    {41, 1},                    /* UNIFIED_ADDRESSING */
    {51, 32},                   /* TEXTURE_PITCH_ALIGNMENT */
    {75, SIM_CAPABILITY_MAJOR}, /* COMPUTE_CAPABILITY_MAJOR */
    {76, SIM_CAPABILITY_MINOR}, /* COMPUTE_CAPABILITY_MINOR */
    {78, 1},                    /* STREAM_PRIORITIES_SUPPORTED */
    {79, 1},                    /* GLOBAL_L1_CACHE_SUPPORTED */
    {80, 1},                    /* LOCAL_L1_CACHE_SUPPORTED */
    {81, 167936},               /* MAX_SHARED_MEMORY_PER_MULTIPROCESSOR */
    {82, 65536},                /* MAX_REGISTERS_PER_MULTIPROCESSOR */
    {83, 1},                    /* MANAGED_MEMORY */
    {87, 2},                    /* SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO */
    {89, 1},                    /* CONCURRENT_MANAGED_ACCESS */
    {91, 1},                    /* CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM */
    {92, 1},                    /* CAN_USE_STREAM_MEM_OPS_V1 */
    {93, 1},                    /* CAN_USE_64_BIT_STREAM_MEM_OPS_V1 */
    {94, 1},                    /* CAN_USE_STREAM_WAIT_VALUE_NOR_V1 */
    {95, 1},                    /* COOPERATIVE_LAUNCH */
    {97, 166912},               /* MAX_SHARED_MEMORY_PER_BLOCK_OPTIN */
    {99, 1},                    /* HOST_REGISTER_SUPPORTED */
    {102, 1},                   /* VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED */
    {103, 1},                   /* HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED */
    {106, 32},                  /* MAX_BLOCKS_PER_MULTIPROCESSOR */
    {108, 31457280},            /* MAX_PERSISTING_L2_CACHE_SIZE */
    {109, 134213632},           /* MAX_ACCESS_POLICY_WINDOW_SIZE */
    {111, 1024},                /* RESERVED_SHARED_MEMORY_PER_BLOCK */
    {115, 1},                   /* MEMORY_POOLS_SUPPORTED */
    {119, 1},                   /* MEMPOOL_SUPPORTED_HANDLE_TYPES: file descriptors */
    {122, 1},                   /* CAN_USE_64_BIT_STREAM_MEM_OPS */
    {123, 1},                   /* CAN_USE_STREAM_WAIT_VALUE_NOR */
    {126, 1},                   /* MEM_SYNC_DOMAIN_COUNT */
    {131, -1},                  /* NUMA_ID */
    {134, -1},                  /* HOST_NUMA_ID */
};
enum { NATTRIBUTES = sizeof attributes / sizeof attributes[0], ATTRIBUTE_MAX = 148 };
enum { PCI_BUS_ID = 33, PCI_DEVICE_ID = 34, PCI_DOMAIN_ID = 50, COMPUTE_PREEMPTION = 90 };

CUresult cuDeviceGetAttribute(int *pi, CUdevice_attribute attrib, CUdevice dev) {
  CUresult result = check(pi, dev);
  if (result)
    return result;
  if (attrib <= 0 || attrib >= ATTRIBUTE_MAX)
    return CUDA_ERROR_INVALID_VALUE;
  const struct sim_device_info *info = &sim_hello.device[dev];
  *pi = 0;
  for (int i = 0; i < NATTRIBUTES; i++)
    if (attributes[i].attribute == attrib)
      *pi = attributes[i].value;
  if (attrib == PCI_BUS_ID)
    *pi = (int)info->pci_bus;
  if (attrib == PCI_DEVICE_ID)
    *pi = (int)info->pci_device;
  if (attrib == PCI_DOMAIN_ID)
    *pi = (int)info->pci_domain;
  if (attrib == COMPUTE_PREEMPTION)
    *pi = (int)sim_hello.preempt;
  return CUDA_SUCCESS;
}

CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice dev) {
  CUresult result = check(major, dev);
  if (result)
    return result;
  if (minor == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  result = cuDeviceGetAttribute(major, 75, dev);
  return result ? result : cuDeviceGetAttribute(minor, 76, dev);
}

CUresult cuDeviceGetProperties(CUdevprop *prop, CUdevice dev) {
  CUresult result = check(prop, dev);
  if (result)
    return result;
  *prop = (CUdevprop){.maxThreadsPerBlock = 1024,
                      .maxThreadsDim = {1024, 1024, 64},
                      .maxGridSize = {2147483647, 65535, 65535},
                      .sharedMemPerBlock = 49152,
                      .totalConstantMemory = 65536,
                      .SIMDWidth = 32,
                      .memPitch = 2147483647,
                      .regsPerBlock = 65536,
                      .clockRate = 1410000,
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

enum {
  P2P_PERFORMANCE_RANK = 1,
  P2P_ACCESS_SUPPORTED = 2,
  P2P_NATIVE_ATOMIC = 3,
  P2P_ARRAY_ACCESS = 4,
  P2P_PARTIAL_ATOMIC = 5
};

CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attrib, CUdevice srcDevice, CUdevice dstDevice) {
  CUresult result = check(value, srcDevice);
  if (result)
    return result;
  if (!sim_device_valid(dstDevice) || srcDevice == dstDevice)
    return CUDA_ERROR_INVALID_DEVICE;
  if (attrib < P2P_PERFORMANCE_RANK || attrib > P2P_PARTIAL_ATOMIC)
    return CUDA_ERROR_INVALID_VALUE;
  *value = attrib == P2P_ACCESS_SUPPORTED || attrib == P2P_ARRAY_ACCESS;
  return CUDA_SUCCESS;
}

CUresult cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget target, CUflushGPUDirectRDMAWritesScope scope) {
  (void)target, (void)scope;
  struct sim_ctx *ctx;
  CUresult result = sim_ctx_need(&ctx);
  return result ? result : CUDA_ERROR_NOT_SUPPORTED;
}
