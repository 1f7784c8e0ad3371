/* Registration by nvcc's generated code: images, and kernels and variables with their host-side stand-ins. */
#include "sim/cudart/cudart.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct binary {
  void *image;
  CUlibrary library; /* loaded at first use */
};

enum entry_kind { ENTRY_KERNEL, ENTRY_VARIABLE, ENTRY_MANAGED };

/* A kernel or variable, by the address of its host-side stand-in. */
struct entry {
  enum entry_kind kind;
  const void *host;
  struct binary *binary;
  const char *name; /* points into the program's constant data */
  CUkernel kernel;
  size_t bytes;                    /* size of a variable, as registered */
  CUdeviceptr own[RT_MAX_DEVICES]; /* memory of a variable that the driver cannot find in the image, or 0 */
  struct entry *next;
};

enum { BUCKETS = 256 };

static struct {
  pthread_mutex_t lock;
  struct entry *bucket[BUCKETS];
} all = {.lock = PTHREAD_MUTEX_INITIALIZER};

static unsigned hash(const void *host) { return (unsigned)(((uintptr_t)host * 0x9e3779b97f4a7c15u) >> 56) % BUCKETS; }

static struct entry *find(const void *host) {
  struct entry *entry = all.bucket[hash(host)];
  while (entry && entry->host != host)
    entry = entry->next;
  return entry;
}

void **__cudaRegisterFatBinary(void *image) {
  struct binary *binary = calloc(1, sizeof *binary);
  if (binary)
    binary->image = image;
  return (void **)binary;
}

void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }

static void forget(const struct binary *binary) {
  for (unsigned i = 0; i < BUCKETS; i++) {
    struct entry **link = &all.bucket[i];
    while (*link) {
      struct entry *entry = *link;
      if (entry->binary == binary) {
        *link = entry->next;
        free(entry);
      } else {
        link = &entry->next;
      }
    }
  }
}

/* The library is not unloaded, because the driver may already be unloaded when a program ends. */
void __cudaUnregisterFatBinary(void **handle) {
  pthread_mutex_lock(&all.lock);
  forget((struct binary *)(void *)handle);
  pthread_mutex_unlock(&all.lock);
  free(handle);
}

static void add(enum entry_kind kind, void **handle, const void *host, const char *name, size_t bytes) {
  struct entry *entry = calloc(1, sizeof *entry);
  if (!entry)
    return; /* a missing entry is reported at first use, as an invalid function or symbol */
  *entry = (struct entry){
      .kind = kind, .host = host, .binary = (struct binary *)(void *)handle, .name = name, .bytes = bytes};
  pthread_mutex_lock(&all.lock);
  entry->next = all.bucket[hash(host)];
  all.bucket[hash(host)] = entry;
  pthread_mutex_unlock(&all.lock);
}

void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int thread_limit,
                            void *tid, void *bid, void *bdim, void *gdim, int *wsize) {
  (void)device, (void)thread_limit, (void)tid, (void)bid, (void)bdim, (void)gdim, (void)wsize;
  add(ENTRY_KERNEL, handle, host, name, 0);
}

void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int ext, size_t size, int constant,
                       int global) {
  (void)device, (void)ext, (void)constant, (void)global;
  add(ENTRY_VARIABLE, handle, host, name, size);
}

void __cudaRegisterManagedVar(void **handle, void **host, char *device, const char *name, int ext, size_t size,
                              int constant, int global) {
  (void)device, (void)ext, (void)constant, (void)global;
  add(ENTRY_MANAGED, handle, host, name, size);
}

/* Host variables that kernels reach through unified addresses need no registration here. */
void __cudaRegisterHostVar(void **handle, const char *name, char *host, size_t size) {
  (void)handle, (void)name, (void)host, (void)size;
}

void __cudaRegisterUnifiedTable(void **handle, void *table) { (void)handle, (void)table; }

static CUresult load(struct binary *binary) {
  if (binary->library)
    return CUDA_SUCCESS;
  return rt_driver.cuLibraryLoadData(&binary->library, binary->image, NULL, NULL, 0, NULL, NULL, 0);
}

/* Memory of a variable whose image the driver cannot read (to the simulated driver, a compressed one): zeroed,
 * with the registered size. */
static CUresult own_memory(struct entry *entry, CUdeviceptr *address) {
  CUdevice device;
  CUresult result = rt_driver.cuCtxGetDevice(&device);
  if (result == CUDA_SUCCESS && entry->own[device] == 0) {
    enum { ATTACH_GLOBAL = 1 };
    result = entry->kind == ENTRY_MANAGED
                 ? rt_driver.cuMemAllocManaged(&entry->own[device], entry->bytes, ATTACH_GLOBAL)
                 : rt_driver.cuMemAlloc_v2(&entry->own[device], entry->bytes);
  }
  *address = result == CUDA_SUCCESS ? entry->own[device] : 0;
  return result;
}

static CUresult variable(struct entry *entry, CUdeviceptr *address, size_t *bytes) {
  CUresult result = load(entry->binary);
  if (result == CUDA_SUCCESS)
    result = (entry->kind == ENTRY_MANAGED ? rt_driver.cuLibraryGetManaged : rt_driver.cuLibraryGetGlobal)(
        address, bytes, entry->binary->library, entry->name);
  if (result == CUDA_ERROR_NOT_FOUND) {
    *bytes = entry->bytes;
    result = own_memory(entry, address);
  }
  return result;
}

void rt_symbols_reset(int device) {
  pthread_mutex_lock(&all.lock);
  for (unsigned i = 0; i < BUCKETS; i++)
    for (struct entry *entry = all.bucket[i]; entry; entry = entry->next)
      entry->own[device] = 0;
  pthread_mutex_unlock(&all.lock);
}

/* Called before the program first uses a managed variable: its stand-in is a pointer that must contain the address. */
static void fill_managed(struct binary *binary) {
  for (unsigned i = 0; i < BUCKETS; i++) {
    for (struct entry *entry = all.bucket[i]; entry; entry = entry->next) {
      CUdeviceptr address;
      size_t bytes;
      if (entry->kind == ENTRY_MANAGED && entry->binary == binary && variable(entry, &address, &bytes) == CUDA_SUCCESS)
        *(void **)(uintptr_t)entry->host = (void *)(uintptr_t)address;
    }
  }
}

char __cudaInitModule(void **handle) {
  if (rt_enter() != cudaSuccess)
    return 0;
  pthread_mutex_lock(&all.lock);
  fill_managed((struct binary *)(void *)handle);
  pthread_mutex_unlock(&all.lock);
  return 1;
}

cudaError_t rt_kernel(const void *host, CUkernel *kernel) {
  const char *name;
  CUresult result = CUDA_SUCCESS;
  cudaError_t error = rt_enter();
  if (error != cudaSuccess)
    return error;
  pthread_mutex_lock(&all.lock);
  struct entry *entry = find(host);
  if (entry && entry->kind == ENTRY_KERNEL && !entry->kernel) {
    result = load(entry->binary);
    if (result == CUDA_SUCCESS)
      result = rt_driver.cuLibraryGetKernel(&entry->kernel, entry->binary->library, entry->name);
  }
  if (entry && entry->kind == ENTRY_KERNEL)
    *kernel = entry->kernel;
  else if (!entry && host && rt_driver.cuKernelGetName(&name, (CUkernel)(uintptr_t)host) == CUDA_SUCCESS)
    *kernel = (CUkernel)(uintptr_t)host; /* a cudaKernel_t, which programs pass as well */
  else
    error = cudaErrorInvalidDeviceFunction;
  pthread_mutex_unlock(&all.lock);
  return error != cudaSuccess ? rt_fail(error) : rt_done(result);
}

cudaError_t rt_function(const void *host, CUfunction *function) {
  CUkernel kernel;
  cudaError_t error = rt_kernel(host, &kernel);
  return error == cudaSuccess ? rt_done(rt_driver.cuKernelGetFunction(function, kernel)) : error;
}

const void *rt_host_of(CUkernel kernel) {
  const void *host = NULL;
  pthread_mutex_lock(&all.lock);
  for (unsigned i = 0; i < BUCKETS && !host; i++)
    for (const struct entry *entry = all.bucket[i]; entry && !host; entry = entry->next)
      if (entry->kind == ENTRY_KERNEL && entry->kernel == kernel)
        host = entry->host;
  pthread_mutex_unlock(&all.lock);
  return host;
}

cudaError_t rt_symbol(const void *host, CUdeviceptr *address, size_t *bytes) {
  CUresult result = CUDA_SUCCESS;
  cudaError_t error = rt_enter();
  if (error != cudaSuccess)
    return error;
  pthread_mutex_lock(&all.lock);
  struct entry *entry = find(host);
  if (!entry || entry->kind == ENTRY_KERNEL)
    error = cudaErrorInvalidSymbol;
  else
    result = variable(entry, address, bytes);
  pthread_mutex_unlock(&all.lock);
  return error != cudaSuccess ? rt_fail(error) : rt_done(result);
}
