/* This process as a client of the simulator: the connection, its devices, and its memory in the engine's accounts. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "page/gs_clock.h"
#include "sim/model/model.h"

static __thread int cancel_before; /* cancellation state to restore; belongs to the thread that holds model_lock */
static pthread_mutex_t model_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t wire_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sim_wire wire = {.fd = -1};
static int joined; /* cuInit has succeeded in this process */
static bool forked;

struct sim_lane **sim_gate;

/* Disables thread cancellation: the calls that ring the bell and wait are cancellation points, and a cancelled thread
 * would leave the model locked. */
void sim_lock(void) {
  int before;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
  pthread_mutex_lock(&model_lock);
  cancel_before = before;
}

void sim_unlock(void) {
  int before = cancel_before;
  pthread_mutex_unlock(&model_lock);
  pthread_setcancelstate(before, &before);
}

int64_t sim_ahead(void) {
  static int64_t ahead = INT64_MIN; /* not known yet */
  int64_t known = __atomic_load_n(&ahead, __ATOMIC_RELAXED);
  if (known == INT64_MIN) {
    known = gs_clock_ahead();
    __atomic_store_n(&ahead, known, __ATOMIC_RELAXED);
  }
  return known;
}

uint64_t sim_now(void) { return gs_clock_own() - (uint64_t)sim_ahead(); }

void sim_spin(uint64_t ns) {
  if (ns == 0)
    return;
  for (uint64_t end = sim_now() + ns; sim_now() < end;)
    sim_pause();
}

void sim_spend(uint64_t ns) {
  const uint64_t spun = 100000; /* sleeps may end later than asked by about this */
  uint64_t end = sim_now() + ns, now;
  while ((now = sim_now()) + spun < end)
    gs_clock_sleep(end - spun + (uint64_t)sim_ahead());
  sim_spin(end > now ? end - now : 0);
}

const struct sim_hello *sim_info(void) { return &sim_hello; }

/* As with the real driver, the parent's handles are not valid in a forked child. The connection stays with the
 * parent. */
static void in_child(void) {
  if (!__atomic_load_n(&joined, __ATOMIC_ACQUIRE))
    return;
  __atomic_store_n(&joined, 0, __ATOMIC_RELEASE);
  forked = true;
  sim_wire_close(&wire);
}

CUresult cuInit(unsigned int Flags) {
  if (Flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (__atomic_load_n(&joined, __ATOMIC_ACQUIRE))
    return CUDA_SUCCESS;
  if (forked)
    return CUDA_ERROR_NOT_INITIALIZED;
  CUresult result = CUDA_SUCCESS;
  pthread_mutex_lock(&init_lock);
  if (!joined) {
    static bool prepared;
    if (!prepared)
      pthread_atfork(NULL, NULL, in_child);
    prepared = true;
    if (sim_wire_open(&wire, SIM_ROLE_CLIENT) != 0) {
      result = CUDA_ERROR_NO_DEVICE;
    } else {
      sim_choose_devices(&wire.hello);
      if (sim_hello.ndevices == 0) {
        sim_wire_close(&wire);
        result = CUDA_ERROR_NO_DEVICE;
      } else {
        __atomic_store_n(&joined, 1, __ATOMIC_RELEASE);
      }
    }
  }
  pthread_mutex_unlock(&init_lock);
  return result;
}

CUresult sim_ready(void) {
  return __atomic_load_n(&joined, __ATOMIC_ACQUIRE) ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

bool sim_device_valid(CUdevice device) { return device >= 0 && (uint32_t)device < sim_hello.ndevices; }

uint32_t sim_engine_device(CUdevice device) { return sim_devices[device].index; }

int sim_call(uint32_t op, CUdevice device, uint64_t a, struct sim_reply *reply, int *fds, int nfds) {
  pthread_mutex_lock(&wire_lock);
  int error = sim_wire_call(&wire, op, sim_devices[device].index, a, 0, reply, fds, nfds);
  pthread_mutex_unlock(&wire_lock);
  return error;
}

int sim_exchange(uint32_t op, uint32_t engine_device, uint64_t a, uint64_t b, int give, struct sim_reply *reply,
                 int *fd) {
  pthread_mutex_lock(&wire_lock);
  int error = sim_wire_give(&wire, op, engine_device, a, b, give, reply, fd, fd != NULL);
  pthread_mutex_unlock(&wire_lock);
  return error == 0 && fd && *fd < 0 ? -EPROTO : error;
}

int sim_file_put(CUdevice device, uint32_t op, const uint64_t secret[2], int fd) {
  struct sim_reply reply;
  pthread_mutex_lock(&wire_lock);
  int error = sim_wire_give(&wire, op, sim_devices[device].index, secret[0], secret[1], fd, &reply, NULL, 0);
  pthread_mutex_unlock(&wire_lock);
  return error;
}

int sim_file_get(const uint64_t secret[2], int *fd, uint32_t *engine_device, int *pid) {
  struct sim_reply reply = {0};
  *fd = -1;
  pthread_mutex_lock(&wire_lock);
  int error = sim_wire_call(&wire, SIM_FILE_GET, 0, secret[0], secret[1], &reply, fd, 1);
  pthread_mutex_unlock(&wire_lock);
  *engine_device = (uint32_t)reply.a;
  *pid = (int)reply.b;
  return error == 0 && *fd < 0 ? -EPROTO : error;
}

CUresult sim_memory_reserve(CUdevice device, uint64_t bytes) {
  struct sim_reply reply;
  if (bytes == 0)
    return CUDA_SUCCESS;
  int error = sim_call(SIM_MEM_ALLOC, device, bytes, &reply, NULL, 0);
  if (error == -ENOMEM)
    return CUDA_ERROR_OUT_OF_MEMORY;
  return error ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

void sim_memory_release(CUdevice device, uint64_t bytes) {
  struct sim_reply reply;
  if (bytes)
    sim_call(SIM_MEM_FREE, device, bytes, &reply, NULL, 0);
}

CUresult sim_memory_info(CUdevice device, uint64_t *free_bytes, uint64_t *total_bytes) {
  struct sim_reply reply;
  if (sim_call(SIM_MEM_INFO, device, 0, &reply, NULL, 0))
    return CUDA_ERROR_UNKNOWN;
  *free_bytes = reply.a - reply.b;
  *total_bytes = reply.a;
  return CUDA_SUCCESS;
}

static void open_gate(struct sim_lane *lane) {
  struct sim_lane **gate = sim_gate;
  if (gate == NULL) {
    gate = mmap(NULL, sizeof(void *), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (gate == MAP_FAILED) /* without memory, no checkpoint waits for its calls */
      return;
    madvise(gate, sizeof(void *), MADV_WIPEONFORK);
    __atomic_store_n(&sim_gate, gate, __ATOMIC_RELEASE);
  }
  if (*gate == NULL)
    __atomic_store_n(gate, lane, __ATOMIC_RELEASE);
}

CUresult sim_device_open(CUdevice device) {
  struct sim_device *state = &sim_devices[device];
  struct sim_reply reply;
  int fds[2];
  if (state->open)
    return CUDA_SUCCESS;
  int error = sim_call(SIM_LANE_OPEN, device, 0, &reply, fds, 2);
  void *page = MAP_FAILED;
  if (error == 0)
    page = mmap(NULL, sizeof *state->page, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
  if (error == 0)
    close(fds[0]);
  if (page == MAP_FAILED)
    return error == -ENOMEM ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_UNKNOWN;
  madvise(page, sizeof *state->page, MADV_DONTFORK);
  state->page = page;
  state->bell = fds[1];
  state->cursor = sim_now();
  state->open = true;
  open_gate(state->page);
  return CUDA_SUCCESS;
}
