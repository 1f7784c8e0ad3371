/* Loading the driver, the thread's last error, and selection of the context for a call. */
#include "sim/cudart/cudart.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

struct rt_functions rt_drivers[2];
_Thread_local bool rt_per_thread;

typedef CUresult (*get_proc)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);

static struct {
  pthread_once_t once;
  cudaError_t error; /* result of loading and initialisation */
  get_proc lookup;
  int count;
  pthread_mutex_t lock;                /* guards the fields below */
  CUcontext primary[RT_MAX_DEVICES];   /* retained by this library, or NULL */
  unsigned generation[RT_MAX_DEVICES]; /* + 1 at each reset: contexts set in other threads are then stale */
} all = {.once = PTHREAD_ONCE_INIT, .lock = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local struct {
  cudaError_t last;
  int device;
  CUcontext set; /* the primary context that this library made current, and its generation */
  unsigned generation;
} thread;

cudaError_t rt_fail(cudaError_t error) {
  if (error != cudaSuccess)
    thread.last = error;
  return error;
}

cudaError_t rt_done(CUresult result) { return rt_fail((cudaError_t)result); }

cudaError_t cudaGetLastError(void) {
  cudaError_t last = thread.last;
  thread.last = cudaSuccess;
  return last;
}

cudaError_t cudaPeekAtLastError(void) { return thread.last; }

static CUresult missing(void) { return (CUresult)cudaErrorCallRequiresNewerDriver; }

static void load_functions(bool own_stream) {
  struct rt_functions *driver = &rt_drivers[own_stream];
  cuuint64_t flags = own_stream ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : CU_GET_PROC_ADDRESS_LEGACY_STREAM;
  for (unsigned i = 0; i < rt_nlookups; i++) {
    void **field = (void **)(void *)((char *)driver + rt_lookups[i].field);
    if (all.lookup(rt_lookups[i].name, field, rt_lookups[i].version[own_stream], flags, NULL) != CUDA_SUCCESS ||
        !*field)
      *field = (void *)(uintptr_t)missing;
  }
}

static void load(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  all.lookup = library ? (get_proc)dlsym(library, "cuGetProcAddress_v2") : NULL;
  if (!all.lookup) {
    all.error = cudaErrorInsufficientDriver;
    return;
  }
  load_functions(false);
  load_functions(true);
  all.error = (cudaError_t)rt_driver.cuInit(0);
  if (all.error == cudaSuccess)
    all.error = (cudaError_t)rt_driver.cuDeviceGetCount(&all.count);
  if (all.count > RT_MAX_DEVICES)
    all.count = RT_MAX_DEVICES;
}

cudaError_t rt_start(void) {
  pthread_once(&all.once, load);
  return rt_fail(all.error);
}

int rt_device_count(void) { return all.count; }

void *rt_driver_symbol(const char *name, int version, uint64_t flags, int *status) {
  void *found = NULL;
  return all.lookup(name, &found, version, flags, status) == CUDA_SUCCESS ? found : NULL;
}

/* The primary context of a device, retained once by this library. generation can be NULL. */
static CUresult primary(int device, CUcontext *context, unsigned *generation) {
  CUresult result = CUDA_SUCCESS;
  pthread_mutex_lock(&all.lock);
  if (!all.primary[device])
    result = rt_driver.cuDevicePrimaryCtxRetain(&all.primary[device], device);
  *context = all.primary[device];
  if (generation)
    *generation = all.generation[device];
  pthread_mutex_unlock(&all.lock);
  return result;
}

/* Makes the primary context of the thread's device current. */
static CUresult bind(void) {
  CUcontext context;
  unsigned generation;
  CUresult result = primary(thread.device, &context, &generation);
  if (result != CUDA_SUCCESS)
    return result;
  result = rt_driver.cuCtxSetCurrent(context);
  thread.set = context;
  thread.generation = generation;
  return result;
}

/* True if this library set the current context and its device was reset since then. */
static bool stale(CUcontext current) {
  return current == thread.set &&
         __atomic_load_n(&all.generation[thread.device], __ATOMIC_ACQUIRE) != thread.generation;
}

cudaError_t rt_enter(void) {
  CUcontext current = NULL;
  cudaError_t error = rt_start();
  if (error != cudaSuccess)
    return error;
  CUresult result = rt_driver.cuCtxGetCurrent(&current);
  if (result == CUDA_SUCCESS && (!current || stale(current)))
    result = bind();
  return rt_done(result);
}

CUcontext rt_context(void) {
  CUcontext context = NULL;
  return all.error == cudaSuccess && rt_driver.cuCtxGetCurrent(&context) == CUDA_SUCCESS ? context : NULL;
}

cudaError_t rt_enter_for(const void *out) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess && !out ? rt_fail(cudaErrorInvalidValue) : error;
}

cudaError_t rt_device(CUdevice *device) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess ? rt_done(rt_driver.cuCtxGetDevice(device)) : error;
}

cudaError_t cudaSetDevice(int device) {
  cudaError_t error = rt_start();
  if (error != cudaSuccess)
    return error;
  if (device < 0 || device >= all.count)
    return rt_fail(cudaErrorInvalidDevice);
  thread.device = device;
  return rt_done(bind());
}

static cudaError_t known(int device) {
  cudaError_t error = rt_start();
  if (error != cudaSuccess)
    return error;
  return device >= 0 && device < all.count ? cudaSuccess : rt_fail(cudaErrorInvalidDevice);
}

/* cudaDeviceScheduleMask, cudaDeviceMapHost, cudaDeviceLmemResizeToMax, cudaDeviceSyncMemops */
enum { DEVICE_FLAGS = 0x7 | 0x8 | 0x10 | 0x80, MAP_HOST = 0x8, FLAGS_VALID = 1 };

/* Creates the context but, unlike cudaSetDevice, does not make it current. */
cudaError_t cudaInitDevice(int device, unsigned device_flags, unsigned flags) {
  CUcontext context;
  cudaError_t error = known(device);
  if (error == cudaSuccess && ((flags & ~(unsigned)FLAGS_VALID) || (flags && device_flags & ~(unsigned)DEVICE_FLAGS)))
    error = rt_fail(cudaErrorInvalidValue);
  if (error == cudaSuccess && flags)
    error = rt_done(rt_driver.cuDevicePrimaryCtxSetFlags_v2(device, device_flags & ~(unsigned)MAP_HOST));
  return error == cudaSuccess ? rt_done(primary(device, &context, NULL)) : error;
}

cudaError_t cudaSetDeviceFlags(unsigned flags) {
  cudaError_t error = rt_start();
  if (error == cudaSuccess && flags & ~(unsigned)DEVICE_FLAGS)
    error = rt_fail(cudaErrorInvalidValue);
  return error == cudaSuccess
             ? rt_done(rt_driver.cuDevicePrimaryCtxSetFlags_v2(thread.device, flags & ~(unsigned)MAP_HOST))
             : error;
}

/* The runtime always maps host memory, and reports that flag. */
cudaError_t cudaGetDeviceFlags(unsigned *flags) {
  int active = 0;
  cudaError_t error = rt_start();
  if (error == cudaSuccess && !flags)
    error = rt_fail(cudaErrorInvalidValue);
  if (error == cudaSuccess)
    error = rt_done(rt_driver.cuDevicePrimaryCtxGetState(thread.device, flags, &active));
  if (error == cudaSuccess)
    *flags |= MAP_HOST;
  return error;
}

/* The first of these devices is chosen; a later cudaSetDevice may choose any. */
cudaError_t cudaSetValidDevices(int *devices, int count) {
  cudaError_t error = rt_start();
  if (error == cudaSuccess && (count < 0 || (count > 0 && !devices)))
    error = rt_fail(cudaErrorInvalidValue);
  for (int i = 0; i < count && error == cudaSuccess; i++)
    error = known(devices[i]);
  if (error == cudaSuccess && count > 0)
    thread.device = devices[0];
  return error;
}

cudaError_t cudaGetDevice(int *device) {
  CUcontext current = NULL;
  cudaError_t error = rt_start();
  if (error != cudaSuccess)
    return error;
  if (!device)
    return rt_fail(cudaErrorInvalidValue);
  *device = thread.device;
  if (rt_driver.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current && !stale(current))
    return rt_done(rt_driver.cuCtxGetDevice(device)); /* also a context that the program set itself */
  return cudaSuccess;
}

bool rt_device_forget(CUdevice *device) {
  *device = thread.device;
  pthread_mutex_lock(&all.lock);
  bool retained = all.primary[*device] != NULL;
  all.primary[*device] = NULL;
  __atomic_fetch_add(&all.generation[*device], 1, __ATOMIC_RELEASE);
  pthread_mutex_unlock(&all.lock);
  return retained;
}
