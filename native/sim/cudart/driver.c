/* Loading the driver, the thread's last error, and selection of the context for a call. */
#include "sim/cudart/cudart.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

struct rt_driver rt_driver;

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

RT_API(cudaError_t, cudaGetLastError, (void)) {
  cudaError_t last = thread.last;
  thread.last = cudaSuccess;
  return last;
}

RT_API(cudaError_t, cudaPeekAtLastError, (void)) { return thread.last; }

static bool load_functions(void) {
  static const struct {
    const char *name;
    int version;
    size_t field;
  } wanted[] = {
#define RT_ENTRY(name, version, parameters) {#name, version, offsetof(struct rt_driver, name)},
      RT_DRIVER_FUNCTIONS(RT_ENTRY)
#undef RT_ENTRY
  };
  for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
    void **field = (void **)(void *)((char *)&rt_driver + wanted[i].field);
    if (all.lookup(wanted[i].name, field, wanted[i].version, 0, NULL) != CUDA_SUCCESS || !*field) {
      fprintf(stderr, "gpushare: the driver has no %s of CUDA %d; it is too old for this runtime\n", wanted[i].name,
              wanted[i].version);
      return false;
    }
  }
  return true;
}

static void load(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  all.lookup = library ? (get_proc)dlsym(library, "cuGetProcAddress_v2") : NULL;
  if (!all.lookup || !load_functions()) {
    all.error = cudaErrorInsufficientDriver;
    return;
  }
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

/* Makes the primary context of the thread's device current. */
static CUresult bind(void) {
  CUresult result = CUDA_SUCCESS;
  int device = thread.device;
  pthread_mutex_lock(&all.lock);
  if (!all.primary[device])
    result = rt_driver.cuDevicePrimaryCtxRetain(&all.primary[device], device);
  CUcontext context = all.primary[device];
  unsigned generation = all.generation[device];
  pthread_mutex_unlock(&all.lock);
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

cudaError_t rt_device(CUdevice *device) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess ? rt_done(rt_driver.cuCtxGetDevice(device)) : error;
}

RT_API(cudaError_t, cudaSetDevice, (int device)) {
  cudaError_t error = rt_start();
  if (error != cudaSuccess)
    return error;
  if (device < 0 || device >= all.count)
    return rt_fail(cudaErrorInvalidDevice);
  thread.device = device;
  return rt_done(bind());
}

RT_API(cudaError_t, cudaInitDevice, (int device, unsigned device_flags, unsigned flags)) {
  (void)device_flags; /* wait modes: the simulated device supports only one */
  if (flags & ~1u)
    return rt_fail(cudaErrorInvalidValue);
  return cudaSetDevice(device);
}

RT_API(cudaError_t, cudaGetDevice, (int *device)) {
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
