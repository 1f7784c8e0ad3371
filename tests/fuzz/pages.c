/* The shared pages as a tenant reads them: its own checks, the reserve rule and the NVML view, with arbitrary values
 * from another process or a newer daemon. */
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"
#include "interposer/os/guest.h"
#include "interposer/nvml/ml.h"
#include "interposer/os/files/pages.h"

enum { FIRST_SLOTS = 4 };

static struct gs_view view;
static char directory[] = "/dev/shm/fuzz-pages-XXXXXX";

/* The clock runs fast, so that the wait for an undecided neighbour ends soon. */
uint64_t __wrap_gs_clock_own(void);
uint64_t __wrap_gs_clock_own(void) {
  static uint64_t now;
  return now += 150000000;
}

/* The view's cached state of a device, which is reset with each input. */
static struct {
  void *at;
  size_t bytes;
} mapped[8];
void *__real_gs_private_map(size_t bytes);
void *__wrap_gs_private_map(size_t bytes);
void *__wrap_gs_private_map(size_t bytes) {
  static unsigned next;
  void *at = __real_gs_private_map(bytes);
  mapped[next++ % 8].at = at;
  mapped[(next - 1) % 8].bytes = bytes;
  return at;
}

static void forget(void *at) {
  for (int i = 0; i < 8; i++)
    if (at && mapped[i].at == at)
      MUST(munmap(at, mapped[i].bytes) == 0);
}

/* The real NVML behind the view. */
static nvmlReturn_t uuid_of(nvmlDevice_t device, char *text, unsigned int size) {
  (void)device;
  snprintf(text, size, "GPU-01020304-0000-0000-0000-000000000000");
  return NVML_SUCCESS;
}
static nvmlReturn_t succeeds(void) { return NVML_SUCCESS; }
struct gs_view *__wrap_gs_ml_view(void);
struct gs_view *__wrap_gs_ml_view(void) { return &view; }
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t, nvmlMemory_t *);
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t, unsigned int *, nvmlProcessInfo_v1_t *);
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t, nvmlUtilization_t *);
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t, nvmlProcessUtilizationSample_t *, unsigned int *,
                                             unsigned long long);

static void clean_up(void) {
  char path[PATH_MAX];
  const char *const names[] = {"limits", "usage"};
  for (int i = 0; i < 2; i++) {
    snprintf(path, sizeof path, "%s/%s", directory, names[i]);
    unlink(path);
  }
  rmdir(directory);
}

static void *file(const char *name, size_t size) {
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s/%s", directory, name);
  int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  MUST(fd >= 0 && ftruncate(fd, (off_t)size) == 0);
  void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  MUST(at != MAP_FAILED);
  close(fd);
  return at;
}

static void look(void) {
  nvmlMemory_t memory;
  nvmlProcessInfo_v1_t processes[2];
  nvmlUtilization_t rates;
  unsigned int count = 2, samples = 2;
  nvmlProcessUtilizationSample_t sample[2] = {{.pid = 1}, {.pid = 0}};
  if (nvmlDeviceGetMemoryInfo(NULL, &memory) == NVML_SUCCESS)
    MUST(memory.used <= memory.total && memory.free + memory.used == memory.total);
  (void)nvmlDeviceGetComputeRunningProcesses(NULL, &count, processes);
  if (nvmlDeviceGetUtilizationRates(NULL, &rates) == NVML_SUCCESS)
    MUST(rates.gpu <= 100 && rates.memory == 0);
  (void)nvmlDeviceGetProcessUtilization(NULL, sample, &samples, 0);
}

static void share(const struct gs_pages *pages, struct bytes *in) {
  for (uint32_t device = 0; device < pages->limits->ndevices; device++) {
    uint64_t used = gs_page_used(pages, device), bytes = take64(in) >> (take8(in) % 64);
    uint32_t slot = take8(in) % FIRST_SLOTS;
    pages->usage->slot[slot].device[device].memory_pending = 0; /* the owner of a slot has one request at a time */
    uint64_t own = pages->usage->slot[slot].device[device].memory_bytes;
    if (slot < pages->limits->slots_high)
      MUST(used >= own);
    if (gs_page_reserve(pages, slot, device, bytes, true) == 0 && bytes > 0) {
      MUST(own + bytes <= pages->limits->device[device].memory_bytes);
      gs_page_give_back(pages, slot, device, bytes);
    }
    MUST(pages->usage->slot[slot].device[device].memory_bytes == own);
    MUST(pages->usage->slot[slot].device[device].memory_pending == 0);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static struct gs_limits *limits;
  static struct gs_usage *usage;
  struct bytes in = {data, size};
  struct gs_pages pages = {NULL, NULL};
  struct gs_err err = {0, ""};
  if (!limits) {
    MUST(mkdtemp(directory));
    atexit(clean_up);
    limits = file("limits", sizeof *limits);
    usage = file("usage", sizeof *usage);
    for (int i = 0; i < GS_ML_COUNT; i++)
      gs_real[i] = (void *)succeeds;
    gs_real[GS_ML_nvmlDeviceGetUUID] = (void *)uuid_of;
  }
  memset(limits, 0, sizeof *limits);
  *limits = (struct gs_limits){.magic = GS_LIMITS_MAGIC,
                               .version = GS_PAGE_VERSION,
                               .size = sizeof *limits,
                               .ndevices = 1,
                               .grant = "grant",
                               .state = GS_GRANT_ACTIVE,
                               .slots_high = FIRST_SLOTS};
  memset(usage, 0, offsetof(struct gs_usage, slot[FIRST_SLOTS]));
  memcpy(usage, &(uint32_t[]){GS_USAGE_MAGIC, GS_PAGE_VERSION, sizeof *usage, GS_MAX_SLOTS}, 16);
  memcpy(usage->grant, "grant", 6);
  uint8_t which = take8(&in);
  if (which & 1)
    take(&in, limits, offsetof(struct gs_limits, device));
  if (which & 2)
    take(&in, usage, offsetof(struct gs_usage, slot));
  for (int i = 0; i < 2; i++)
    take(&in, &limits->device[i], sizeof limits->device[i]);
  memcpy(limits->device[0].uuid, "\1\2\3\4\0\0\0\0\0\0\0\0\0\0\0", 16);
  for (int i = 0; i < FIRST_SLOTS; i++) {
    take(&in, &usage->slot[i], offsetof(struct gs_slot, device));
    for (int device = 0; device < 2; device++)
      take(&in, &usage->slot[i].device[device], 16);
  }
  memset(&view, 0, sizeof view);
  if (gs_pages_view(directory, &pages, &err) == 0) {
    view = (struct gs_view){
        .limits = pages.limits, .usage = pages.usage, .total_bytes = {pages.limits->device[0].memory_bytes}};
    look();
    for (int i = 0; i < GS_MAX_DEVICES; i++)
      forget(view.history[i]);
    munmap((void *)(uintptr_t)pages.limits, sizeof *limits);
    munmap(pages.usage, sizeof *usage);
  }
  if (gs_pages_map(directory, -1, &pages, &err) == 0) {
    share(&pages, &in);
    munmap((void *)(uintptr_t)pages.limits, sizeof *limits);
    munmap(pages.usage, sizeof *usage);
  } else {
    MUST(err.code < 0 && memchr(err.msg, 0, sizeof err.msg) && *err.msg);
  }
  return 0;
}
