/* The cost of waits, queries and allocations through the interposer, by the number of objects that the program has:
 *   memorycost DRIVER HOW ALLOCATIONS BLOCKS POOLS STREAMS PENDING
 * The blocks are spread over the pools; PENDING allocations are freed in a stream that stays blocked. Each call is made
 * alternately through the function that the program is linked with and directly into DRIVER, the library that the
 * interposer forwards to, in one thread and on the same objects. HOW: `time` measures nanoseconds, the median of
 * batches; `steps` measures instructions, the minimum of a few calls, counted by single-stepping the processor, which
 * no other program can disturb. Prints one JSON line. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <ucontext.h>

#include "program.h"

enum { BATCH = 50, BATCHES = 2000, TRIES = 5, SMALL = 512 };

/* The functions that are compared: ours and the driver's. */
static struct {
  CUresult (*stream_wait)(CUstream), (*stream_query)(CUstream), (*context_wait)(void);
  CUresult (*event_wait)(CUevent), (*event_query)(CUevent);
  CUresult (*alloc)(CUdeviceptr *, size_t), (*free)(CUdeviceptr);
  CUresult (*alloc_async)(CUdeviceptr *, size_t, CUstream), (*free_async)(CUdeviceptr, CUstream);
} api[2];

static CUstream stream;
static CUevent event;
static CUdeviceptr address[BATCH];

enum { WAIT, QUERY, CONTEXT_WAIT, EVENT_WAIT, EVENT_QUERY, ALLOC, FREE, ALLOC_ASYNC, FREE_ASYNC, CALLS };
static const char *const names[CALLS] = {"cuStreamSynchronize", "cuStreamQuery",   "cuCtxSynchronize",
                                         "cuEventSynchronize",  "cuEventQuery",    "cuMemAlloc",
                                         "cuMemFree",           "cuMemAllocAsync", "cuMemFreeAsync"};

static CUresult call(int which, int whose, int i) {
  switch (which) {
    case WAIT: return api[whose].stream_wait(stream);
    case QUERY: return api[whose].stream_query(stream);
    case CONTEXT_WAIT: return api[whose].context_wait();
    case EVENT_WAIT: return api[whose].event_wait(event);
    case EVENT_QUERY: return api[whose].event_query(event);
    case ALLOC: return api[whose].alloc(&address[i], SMALL);
    case FREE: return api[whose].free(address[i]);
    case ALLOC_ASYNC: return api[whose].alloc_async(&address[i], SMALL, stream);
    default: return api[whose].free_async(address[i], stream);
  }
}

static void make(int which, int whose, int i) {
  CUresult result = call(which, whose, i);
  if (result != CUDA_SUCCESS) {
    fprintf(stderr, "%s: %d\n", names[which], result);
    exit(1);
  }
}

static uint32_t *gate; /* blocks the stream with pending frees; NULL: there is none */

/* Whether the call would block for ever: these wait for all streams. */
static bool blocks(int which) { return gate && (which == CONTEXT_WAIT || which == ALLOC || which == FREE); }

static bool allocates(int which) { return which == ALLOC || which == ALLOC_ASYNC; }
static bool frees(int which) { return which == FREE || which == FREE_ASYNC; }

static void before(int which, int whose, int count) {
  for (int i = 0; frees(which) && i < count; i++)
    make(which - 1, whose, i);
}

static void after(int which, int whose, int count) {
  for (int i = 0; allocates(which) && i < count; i++)
    make(which + 1, whose, i);
  if (which == ALLOC_ASYNC || which == FREE_ASYNC)
    OK(api[whose].stream_wait(stream));
}

/* ---- nanoseconds ---- */

static double costs[CALLS][2][BATCHES];

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double batch(int which, int whose) {
  before(which, whose, BATCH);
  uint64_t began = now();
  for (int i = 0; i < BATCH; i++)
    make(which, whose, i);
  double took = (double)(now() - began) / BATCH;
  after(which, whose, BATCH);
  return took;
}

static double timed(int which, int whose) {
  qsort(costs[which][whose], BATCHES, sizeof(double), ascending);
  return costs[which][whose][BATCHES / 2];
}

/* ---- instructions ---- */

#ifdef __x86_64__
enum { TRAP_FLAG = 0x100 };
static volatile sig_atomic_t stepping;
static volatile uint64_t taken;

static void stepped(int number, siginfo_t *info, void *at) {
  greg_t *flags = &((ucontext_t *)at)->uc_mcontext.gregs[REG_EFL];
  (void)number, (void)info;
  if (stepping) {
    taken++;
    *flags |= TRAP_FLAG;
  } else {
    *flags &= ~(greg_t)TRAP_FLAG;
  }
}

static uint64_t one(int which, int whose, int i) {
  taken = 0;
  stepping = 1;
  raise(SIGTRAP); /* its handler sets the flag */
  CUresult result = call(which, whose, i);
  stepping = 0;
  __asm__ volatile("nop");
  if (result != CUDA_SUCCESS)
    exit(1);
  return taken;
}
#else
static void stepped(int number) { (void)number; }
static uint64_t one(int which, int whose, int i) { return (void)which, (void)whose, (void)i, 0; }
#endif

/* Returns the minimum, since the first calls fill caches, the interposer's own thread may hold a lock, and an address
 * may need many probes in a hash table. */
static double counted(int which, int whose) {
  uint64_t least = UINT64_MAX;
  before(which, whose, TRIES);
  for (int i = 0; i < TRIES; i++) {
    uint64_t steps = one(which, whose, i);
    least = steps < least ? steps : least;
  }
  after(which, whose, TRIES);
  return (double)least;
}

/* ------------------------------------------------------------------------------------------------------------------ */

static void find(const char *driver) {
  void *library = dlopen(driver, RTLD_NOW | RTLD_LOCAL);
  api[0] = (__typeof__(api[0])){cuStreamSynchronize, cuStreamQuery, cuCtxSynchronize, cuEventSynchronize, cuEventQuery,
                                cuMemAlloc_v2,       cuMemFree_v2,  cuMemAllocAsync,  cuMemFreeAsync};
  static const char *const exported[CALLS] = {"cuStreamSynchronize", "cuStreamQuery",   "cuCtxSynchronize",
                                              "cuEventSynchronize",  "cuEventQuery",    "cuMemAlloc_v2",
                                              "cuMemFree_v2",        "cuMemAllocAsync", "cuMemFreeAsync"};
  void *found[CALLS];
  _Static_assert(sizeof found == sizeof api[1], "one address for each function, in the order of the struct");
  for (int i = 0; library && i < CALLS; i++)
    found[i] = dlsym(library, exported[i]);
  if (!library)
    exit(2);
  memcpy(&api[1], found, sizeof found);
}

static void pend(int frees) {
  CUstream blocked;
  CUdeviceptr at;
  void *host;
  OK(cuStreamCreate(&blocked, 1));
  OK(cuMemHostAlloc(&host, sizeof *gate, 2 /* mapped */));
  gate = host;
  *gate = 0;
  OK(cuStreamWaitValue32_v2(blocked, (CUdeviceptr)(uintptr_t)gate, 1, 0 /* at least */));
  for (int i = 0; i < frees; i++) {
    OK(cuMemAlloc_v2(&at, SMALL));
    OK(cuMemFreeAsync(at, blocked));
  }
}

static void have(int allocations, int blocks, int pools, int all_streams) {
  uint64_t never = UINT64_MAX;
  CUmemoryPool pool = NULL, *all = calloc((size_t)pools + 1, sizeof *all);
  CUdeviceptr ignored;
  for (int i = 0; i < all_streams; i++)
    OK(cuStreamCreate(&stream, 1));
  for (int i = 0; i < pools; i++) {
    const CUmemPoolProps wanted = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                   .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    if (i == 0)
      OK(cuDeviceGetDefaultMemPool(&pool, 0));
    else
      OK(cuMemPoolCreate(&pool, &wanted));
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &never));
    OK(cuMemAllocFromPoolAsync(&ignored, SMALL, pool, stream));
    all[i] = pool;
  }
  for (int i = 0; i < allocations; i++)
    OK(cuMemAlloc_v2(&ignored, SMALL));
  for (int i = 0; i < blocks; i++)
    OK(cuMemAllocFromPoolAsync(&ignored, SMALL, all[i % pools], stream));
  free(all);
}

int main(int argc, char **argv) {
  if (argc < 8)
    return 2;
  bool steps = strcmp(argv[2], "steps") == 0;
  find(argv[1]);
  OK(cuInit(0));
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(context));
  have(atoi(argv[3]), atoi(argv[4]), atoi(argv[5]), atoi(argv[6]));
  if (atoi(argv[7]) > 0)
    pend(atoi(argv[7]));
  OK(cuEventCreate(&event, 2 /* without timing */));
  OK(cuEventRecord(event, stream));
  OK(cuStreamSynchronize(stream));
  const struct sigaction action = {.sa_handler = (void (*)(int))(uintptr_t)stepped, .sa_flags = SA_SIGINFO};
  sigaction(SIGTRAP, &action, NULL);
  for (int i = 0; !steps && i < BATCHES; i++)
    for (int which = 0; which < CALLS; which++) {
      if (blocks(which))
        continue;
      costs[which][i & 1][i] = batch(which, i & 1);
      costs[which][~i & 1][i] = batch(which, ~i & 1);
    }
  bool first = true;
  for (int which = 0; which < CALLS; which++) {
    double cost[2];
    if (blocks(which))
      continue;
    for (int whose = 0; whose < 2; whose++)
      cost[whose] = steps ? counted(which, whose) : timed(which, whose);
    printf("%s\"%s\": [%.1f, %.1f]", first ? "{" : ", ", names[which], cost[0], cost[1]);
    first = false;
  }
  printf("}\n");
  if (gate)
    *gate = 1;
  return 0;
}
