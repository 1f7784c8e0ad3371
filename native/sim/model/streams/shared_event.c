/* Interprocess events (cuIpcGetEventHandle). Such an event is a pair of counters in a page that its process shares:
 * each record takes the next number, and the device stores that number when it reaches the record. A wait is for the
 * last number taken. A record that the device had not reached when its process died never completes. The engine passes
 * the page to any process that has the secret in the handle, as for IPC memory. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "sim/model/streams/shared_event.h"

struct sim_shared_event {
  uint64_t recorded, reached;
};

struct handle {
  uint64_t magic, secret[2], index;
  uint8_t unused[32];
};
_Static_assert(sizeof(struct handle) == sizeof(CUipcEventHandle), "a handle is 64 bytes");
#define HANDLE_MAGIC 0x6773497063450001ull

enum { EVENTS = 65536, FILES = 64, LOOK_NS = 100000 };
static const size_t file_bytes = EVENTS * sizeof(struct sim_shared_event);

/* This process's own page and the pages it opened. Entries of a page are not reused, because other processes may still
 * refer to them. Guarded by sim_lock. */
static struct {
  struct sim_shared_event *events;
  uint64_t secret[2];
} file[FILES];
static uint32_t files = 1, used; /* file[0] is this process's own page */

static struct sim_shared_event *map_file(int fd) {
  void *at = mmap(NULL, file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  return at == MAP_FAILED ? NULL : at;
}

static bool make_file(CUdevice device) {
  uint64_t secret[2];
  int fd = memfd_create("gpushare-sim-events", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  struct sim_shared_event *events = NULL;
  const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  if (fd >= 0 && ftruncate(fd, (off_t)file_bytes) == 0 && fcntl(fd, F_ADD_SEALS, seals) == 0 &&
      getrandom(secret, sizeof secret, 0) == (ssize_t)sizeof secret &&
      sim_file_put(device, SIM_EVENTS_PUT, secret, fd) == 0)
    events = map_file(fd);
  if (fd >= 0)
    close(fd);
  if (!events)
    return false;
  file[0].events = events;
  memcpy(file[0].secret, secret, sizeof secret);
  return true;
}

struct sim_shared_event *sim_shared_event_new(CUdevice device) {
  if (used == EVENTS || (!file[0].events && !make_file(device)))
    return NULL;
  return &file[0].events[used++];
}

/* ---- records and waits ------------------------------------------------------------------------------------------- */

struct payload {
  struct sim_shared_event *event;
  uint64_t number;
};

static void reach(void *payload) {
  const struct payload *record = payload;
  uint64_t *word = &record->event->reached, seen = __atomic_load_n(word, __ATOMIC_RELAXED);
  while (seen < record->number &&
         !__atomic_compare_exchange_n(word, &seen, record->number, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
  }
}

static bool reached(const void *payload) {
  const struct payload *wait = payload;
  return __atomic_load_n(&wait->event->reached, __ATOMIC_ACQUIRE) >= wait->number;
}

static struct payload latest(struct sim_shared_event *event) {
  return (struct payload){event, __atomic_load_n(&event->recorded, __ATOMIC_ACQUIRE)};
}

static CUresult enqueue(struct sim_stream *stream, enum sim_resource resource, const struct payload *payload) {
  struct sim_op op = {.resource = resource,
                      .run = resource == SIM_INSTANT ? reach : NULL,
                      .ready = resource == SIM_WAIT_VALUE ? reached : NULL,
                      .node_type = SIM_NODE_NONE,
                      .payload = payload,
                      .payload_bytes = sizeof *payload};
  return sim_enqueue(stream, &op, false, false) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_shared_event_record(struct sim_shared_event *event, struct sim_stream *stream) {
  struct payload payload = {event, __atomic_add_fetch(&event->recorded, 1, __ATOMIC_ACQ_REL)};
  return enqueue(stream, SIM_INSTANT, &payload);
}

CUresult sim_shared_event_wait(struct sim_shared_event *event, struct sim_stream *stream) {
  struct payload payload = latest(event);
  return reached(&payload) ? CUDA_SUCCESS : enqueue(stream, SIM_WAIT_VALUE, &payload);
}

bool sim_shared_event_done(struct sim_shared_event *event) {
  struct payload payload = latest(event);
  return reached(&payload);
}

static uint64_t look_again(const void *payload, uint64_t now) {
  (void)payload;
  return now + LOOK_NS;
}

void sim_shared_event_sync(struct sim_shared_event *event, CUdevice device, bool blocking) {
  struct payload payload = latest(event);
  sim_wait(device, blocking, &(struct sim_condition){reached, look_again, &payload});
}

/* ---- handles ----------------------------------------------------------------------------------------------------- */

CUresult sim_shared_event_handle(const struct sim_shared_event *event, CUipcEventHandle *out) {
  struct handle handle = {.magic = HANDLE_MAGIC};
  for (uint32_t i = 0; i < files; i++)
    if (event >= file[i].events && event < file[i].events + EVENTS) {
      memcpy(handle.secret, file[i].secret, sizeof handle.secret);
      handle.index = (uint64_t)(event - file[i].events);
    }
  memcpy(out, &handle, sizeof handle);
  return CUDA_SUCCESS;
}

static CUresult find_file(const struct handle *handle, struct sim_shared_event **events) {
  uint32_t engine_device;
  int fd, pid;
  for (uint32_t i = 1; i < files; i++)
    if (memcmp(file[i].secret, handle->secret, sizeof handle->secret) == 0) {
      *events = file[i].events;
      return CUDA_SUCCESS;
    }
  /* an invalid handle, or the owning process has ended */
  if (sim_file_get(handle->secret, &fd, &engine_device, &pid) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (pid == sim_info()->host_pid)
    *events = NULL;
  else
    *events = files < FILES ? map_file(fd) : NULL;
  close(fd);
  if (pid == sim_info()->host_pid)
    return CUDA_ERROR_INVALID_CONTEXT; /* a process cannot import from itself */
  if (!*events)
    return CUDA_ERROR_MAP_FAILED;
  file[files].events = *events;
  memcpy(file[files++].secret, handle->secret, sizeof handle->secret);
  return CUDA_SUCCESS;
}

CUresult sim_shared_event_open(CUipcEventHandle handle, struct sim_shared_event **event) {
  struct sim_shared_event *events;
  struct handle named;
  memcpy(&named, &handle, sizeof named);
  if (named.magic != HANDLE_MAGIC || named.index >= EVENTS)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = find_file(&named, &events);
  if (result == CUDA_SUCCESS)
    *event = &events[named.index];
  return result;
}
