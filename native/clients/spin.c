/* A controllable tenant: it holds device memory and runs spin_ns kernels back to back. The same program runs on a real
 * and on a simulated GPU.
 *
 * gpushare-spin [--device N] [--alloc SIZE] [--kernel-ns NS] [--gap-ns NS] [--seconds S] [--duty PERCENT]
 *
 * With --gap-ns it waits for each kernel and then computes on the CPU for that long before the next one, like a program
 * limited by its host code.
 *
 * With --seconds it runs for that long, prints one JSON object and exits. Without --seconds it reads commands from
 * stdin, one per line, and answers each with one JSON object on stdout:
 *
 * alloc SIZE | fill SIZE PIECE | free | memory | touch MASK | sum | run NS [PERCENT] | idle | quit
 *
 * `run` returns at once, and kernels follow until the next idle, run or quit; work is submitted during PERCENT of each
 * 20 ms period. `touch` flips the bits of MASK in each 8-byte word of the held memory, `sum` adds all words up; both by
 * kernels, and `sum` waits for them. `fill` allocates pieces until SIZE is reached or an allocation fails. Out of memory is a normal answer
 * ("ok": false, with the CUDA error); any other CUDA error ends the program with status 1. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "api/gs_cuda.h"

enum {
  ALLOCATIONS_MAX = 4096,
  LINE_MAX_BYTES = 256,
  PERIOD_NS = 20000000, /* period of a duty cycle */
  BATCH_NS = 4000000    /* work between two events; two batches are in flight, as in a typical training loop */
};

CUresult cuInit(unsigned);
CUresult cuDeviceGet(CUdevice *, int);
CUresult cuDeviceGetName(char *, int, CUdevice);
CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuCtxSynchronize(void);
CUresult cuModuleLoadData(CUmodule *, const void *);
CUresult cuModuleGetFunction(CUfunction *, CUmodule, const char *);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
CUresult cuMemFree_v2(CUdeviceptr);
CUresult cuMemcpyDtoH_v2(void *, CUdeviceptr, size_t);
CUresult cuMemGetInfo_v2(size_t *, size_t *);
CUresult cuStreamCreate(CUstream *, unsigned);
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                        void **, void **);
CUresult cuEventCreate(CUevent *, unsigned);
CUresult cuEventRecord(CUevent, CUstream);
CUresult cuEventSynchronize(CUevent);
CUresult cuGetErrorName(CUresult, const char **);

extern const char gs_spin_ptx[], gs_words_ptx[];

struct program {
  CUfunction spin, touch, sum; /* touch and sum: loaded when first needed */
  CUdeviceptr total;           /* where sum puts its result */
  CUstream stream;
  CUevent marks[2];
  unsigned long batches; /* marks recorded; submit() waits for the older one */

  CUdeviceptr held[ALLOCATIONS_MAX];
  size_t sizes[ALLOCATIONS_MAX];
  unsigned nheld;
  size_t held_bytes;

  bool running;
  uint64_t kernel_ns, gap_ns, kernels;
  unsigned duty; /* percent */
};

static uint64_t now_ns(void) {
  struct timespec t;

  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static const char *error_name(CUresult code) {
  const char *name = NULL;

  return cuGetErrorName(code, &name) == CUDA_SUCCESS && name ? name : "CUDA_ERROR_UNKNOWN";
}

/* Exits on an error: without its device the tenant cannot continue. */
static void must(CUresult code, const char *call) {
  if (code == CUDA_SUCCESS)
    return;
  printf("{\"event\": \"error\", \"call\": \"%s\", \"error\": %d, \"name\": \"%s\"}\n", call, code, error_name(code));
  fflush(stdout);
  exit(1);
}

static bool parse_size(const char *text, size_t *out) {
  static const char units[] = "KMGT";
  unsigned long long value;
  char *end;

  errno = 0;
  value = strtoull(text, &end, 10);
  if (errno || end == text || *text == '-')
    return false;
  if (*end && strchr(units, *end)) {
    value <<= 10 * (strchr(units, *end) - units + 1);
    end += strncmp(end + 1, "iB", 2) == 0 ? 3 : 1;
  }
  *out = value;
  return !*end;
}

static void start(struct program *p, int ordinal) {
  CUcontext context;
  CUmodule module;
  CUdevice device;
  char name[128];

  must(cuInit(0), "cuInit");
  must(cuDeviceGet(&device, ordinal), "cuDeviceGet");
  must(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
  must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
  must(cuModuleLoadData(&module, gs_spin_ptx), "cuModuleLoadData");
  must(cuModuleGetFunction(&p->spin, module, "spin_ns"), "cuModuleGetFunction");
  must(cuStreamCreate(&p->stream, 1 /* CU_STREAM_NON_BLOCKING */), "cuStreamCreate");
  for (int i = 0; i < 2; i++)
    must(cuEventCreate(&p->marks[i], 2 /* CU_EVENT_DISABLE_TIMING */), "cuEventCreate");
  must(cuDeviceGetName(name, sizeof name, device), "cuDeviceGetName");
  printf("{\"event\": \"ready\", \"pid\": %d, \"device\": \"%s\"}\n", (int)getpid(), name);
}

static CUresult hold(struct program *p, size_t bytes) {
  CUresult code = CUDA_ERROR_OUT_OF_MEMORY;

  if (p->nheld < ALLOCATIONS_MAX)
    code = cuMemAlloc_v2(&p->held[p->nheld], bytes);
  if (code == CUDA_SUCCESS) {
    p->sizes[p->nheld++] = bytes;
    p->held_bytes += bytes;
  } else if (code != CUDA_ERROR_OUT_OF_MEMORY) {
    must(code, "cuMemAlloc");
  }
  return code;
}

static void allocate(struct program *p, size_t bytes, size_t piece) {
  CUresult code = CUDA_SUCCESS;

  for (size_t left = bytes; left && code == CUDA_SUCCESS; left -= left < piece ? left : piece)
    code = hold(p, left < piece ? left : piece);
  printf("{\"event\": \"alloc\", \"ok\": %s, \"error\": %d, \"name\": \"%s\", \"bytes\": %zu, \"held_bytes\": %zu}\n",
         code == CUDA_SUCCESS ? "true" : "false", code, error_name(code), bytes, p->held_bytes);
}

static void release(struct program *p) {
  while (p->nheld) {
    p->nheld--;
    must(cuMemFree_v2(p->held[p->nheld]), "cuMemFree");
    p->held_bytes -= p->sizes[p->nheld];
  }
  printf("{\"event\": \"free\", \"held_bytes\": %zu}\n", p->held_bytes);
}

static void memory(struct program *p) {
  size_t available, total;

  must(cuMemGetInfo_v2(&available, &total), "cuMemGetInfo");
  printf("{\"event\": \"memory\", \"free_bytes\": %zu, \"total_bytes\": %zu, \"held_bytes\": %zu}\n", available, total,
         p->held_bytes);
}

/* Launches a kernel on one held allocation. */
static void launch_on(struct program *p, unsigned i, CUfunction kernel, unsigned blocks, uint64_t argument) {
  uint64_t bytes = p->sizes[i];
  void *arguments[] = {&p->held[i], &bytes, &argument};

  must(cuLaunchKernel(kernel, blocks, 1, 1, 256, 1, 1, 0, p->stream, arguments, NULL), "cuLaunchKernel");
}

static void need_words(struct program *p) {
  CUmodule module;

  if (p->touch)
    return;
  must(cuModuleLoadData(&module, gs_words_ptx), "cuModuleLoadData");
  must(cuModuleGetFunction(&p->touch, module, "touch_words"), "cuModuleGetFunction");
  must(cuModuleGetFunction(&p->sum, module, "sum_words"), "cuModuleGetFunction");
  must(cuMemAlloc_v2(&p->total, sizeof(uint64_t)), "cuMemAlloc");
}

static void touch(struct program *p, uint64_t mask) {
  need_words(p);
  for (unsigned i = 0; i < p->nheld; i++)
    launch_on(p, i, p->touch, 256, mask);
  printf("{\"event\": \"touch\", \"held_bytes\": %zu}\n", p->held_bytes);
}

static void sum(struct program *p) {
  uint64_t all = 0, one;

  need_words(p);
  for (unsigned i = 0; i < p->nheld; i++) {
    launch_on(p, i, p->sum, 1, p->total);
    must(cuCtxSynchronize(), "cuCtxSynchronize");
    must(cuMemcpyDtoH_v2(&one, p->total, sizeof one), "cuMemcpyDtoH");
    all += one;
  }
  printf("{\"event\": \"sum\", \"sum\": %lu}\n", all);
}

/* Submits one batch and waits for the one before it. */
static void submit(struct program *p) {
  void *arguments[] = {&p->kernel_ns};
  uint64_t n = p->kernel_ns && p->kernel_ns < BATCH_NS ? BATCH_NS / p->kernel_ns : 1;

  for (uint64_t i = 0; i < n; i++)
    must(cuLaunchKernel(p->spin, 1, 1, 1, 1, 1, 1, 0, p->stream, arguments, NULL), "cuLaunchKernel");
  must(cuEventRecord(p->marks[p->batches % 2], p->stream), "cuEventRecord");
  p->batches++;
  if (p->batches > 1)
    must(cuEventSynchronize(p->marks[p->batches % 2]), "cuEventSynchronize");
  p->kernels += n;
}

/* Submits one kernel, waits for it, then computes on the CPU for gap_ns. */
static void submit_one(struct program *p) {
  void *arguments[] = {&p->kernel_ns};

  must(cuLaunchKernel(p->spin, 1, 1, 1, 1, 1, 1, 0, p->stream, arguments, NULL), "cuLaunchKernel");
  must(cuEventRecord(p->marks[0], p->stream), "cuEventRecord");
  must(cuEventSynchronize(p->marks[0]), "cuEventSynchronize");
  p->kernels++;
  for (uint64_t end = now_ns() + p->gap_ns; now_ns() < end;)
    ;
}

static void work(struct program *p) {
  if (p->gap_ns)
    submit_one(p);
  else
    submit(p);
}

static void stop(struct program *p) {
  must(cuCtxSynchronize(), "cuCtxSynchronize");
  p->running = false;
  printf("{\"event\": \"idle\", \"kernels\": %lu, \"t_ns\": %lu}\n", p->kernels, now_ns());
}

static bool command(struct program *p, char *line) {
  unsigned long ns;
  unsigned duty = 100;
  char size[32], part[32];
  size_t bytes, piece;

  if (sscanf(line, "alloc %31s", size) == 1 && parse_size(size, &bytes))
    allocate(p, bytes, bytes);
  else if (sscanf(line, "fill %31s %31s", size, part) == 2 && parse_size(size, &bytes) && parse_size(part, &piece) &&
           piece)
    allocate(p, bytes, piece);
  else if (sscanf(line, "touch %lu", &ns) == 1)
    touch(p, ns);
  else if (strcmp(line, "sum") == 0)
    sum(p);
  else if (strcmp(line, "free") == 0)
    release(p);
  else if (strcmp(line, "memory") == 0)
    memory(p);
  else if (sscanf(line, "run %lu %u", &ns, &duty) >= 1 && duty >= 1 && duty <= 100) {
    p->running = true;
    p->kernel_ns = ns;
    p->duty = duty;
    printf("{\"event\": \"run\", \"t_ns\": %lu}\n", now_ns());
  } else if (strcmp(line, "idle") == 0)
    stop(p);
  else if (strcmp(line, "quit") == 0)
    return false;
  else
    printf("{\"event\": \"unknown\"}\n");
  return true;
}

/* Executes all complete lines in the buffer. False after quit or at the end of stdin. */
static bool obey(struct program *p, char *buffer, size_t *used) {
  ssize_t n = read(STDIN_FILENO, buffer + *used, LINE_MAX_BYTES - 1 - *used);
  char *newline;

  if (n < 0 && (errno == EINTR || errno == EAGAIN))
    return true;
  if (n <= 0)
    return false;
  *used += (size_t)n;
  buffer[*used] = '\0';
  while ((newline = strchr(buffer, '\n'))) {
    *newline = '\0';
    if (!command(p, buffer))
      return false;
    *used -= (size_t)(newline + 1 - buffer);
    memmove(buffer, newline + 1, *used + 1);
  }
  return *used < LINE_MAX_BYTES - 1;
}

static void serve(struct program *p) {
  char buffer[LINE_MAX_BYTES];
  size_t used = 0;
  uint64_t origin = now_ns();

  for (;;) {
    uint64_t at = (now_ns() - origin) % PERIOD_NS, on = (uint64_t)PERIOD_NS * p->duty / 100;
    bool off = p->running && at >= on;
    int wait_ms = !p->running ? -1 : off ? (int)((PERIOD_NS - at) / 1000000) + 1 : 0;
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};

    if (poll(&in, 1, wait_ms) > 0 && !obey(p, buffer, &used))
      return;
    if (p->running && !off)
      work(p);
  }
}

static void run_for(struct program *p, double seconds) {
  uint64_t origin = now_ns(), end = origin + (uint64_t)(seconds * 1e9), at;

  while ((at = now_ns()) < end) {
    uint64_t phase = (at - origin) % PERIOD_NS;

    if (phase < (uint64_t)PERIOD_NS * p->duty / 100)
      work(p);
    else
      usleep((useconds_t)((PERIOD_NS - phase) / 1000) + 1);
  }
  stop(p);
}

int main(int argc, char **argv) {
  static struct program p = {.kernel_ns = 1000000, .duty = 100};
  int ordinal = 0;
  size_t bytes = 0;
  double seconds = -1;

  for (int i = 1; i < argc; i += 2) {
    bool known = i + 1 < argc;

    if (known && strcmp(argv[i], "--device") == 0)
      ordinal = atoi(argv[i + 1]);
    else if (known && strcmp(argv[i], "--kernel-ns") == 0)
      p.kernel_ns = strtoull(argv[i + 1], NULL, 10);
    else if (known && strcmp(argv[i], "--gap-ns") == 0)
      p.gap_ns = strtoull(argv[i + 1], NULL, 10);
    else if (known && strcmp(argv[i], "--seconds") == 0)
      seconds = atof(argv[i + 1]);
    else if (known && strcmp(argv[i], "--duty") == 0)
      p.duty = (unsigned)atoi(argv[i + 1]);
    else if (!known || strcmp(argv[i], "--alloc") != 0 || !parse_size(argv[i + 1], &bytes)) {
      fprintf(stderr, "usage: gpushare-spin [--device N] [--alloc SIZE] [--kernel-ns NS] [--gap-ns NS] [--seconds S] "
                      "[--duty PERCENT]\n");
      return 2;
    }
  }
  setvbuf(stdout, NULL, _IOLBF, 0);
  start(&p, ordinal);
  if (bytes)
    allocate(&p, bytes, bytes);
  if (seconds >= 0)
    run_for(&p, seconds);
  else
    serve(&p);
  return 0;
}
