#define _GNU_SOURCE
#include "gate.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "books.h"

/* Of the published token bucket. */
enum { WATCH_NS = 120000000, SLEEP_NS = 10000000, FACTOR = 32, STEP_MIN = 5, STEP_DIVISOR = 2560, SAMPLES = 10 };
/* Of the published lock: the launches between two waits for the queue. */
enum { WINDOW_MAX = 2048, SLOW_NS = 1000000000 };

static struct gate_options options;
static struct bench_page *page;
static struct bench_tenant *mine;
static CUcontext context;
static int64_t tokens;
static pthread_mutex_t submitting = PTHREAD_MUTEX_INITIALIZER;
static uint64_t last_launch_ns;
static unsigned window = 1, launched;

static bool over(void) { return load32(&page->stop) != 0; }

/* ---- tokens ---- */

struct bucket {
  /* what a point of difference is worth, the most a period adds, what it adds now */
  int64_t per_second_unit, total, share;
};

static void adjust(struct bucket *b, int limit, int used) {
  int difference = abs(limit - used) > STEP_MIN ? abs(limit - used) : STEP_MIN;
  int64_t step = b->per_second_unit * difference / STEP_DIVISOR;
  if (difference > limit / 2)
    step = step * difference * 2 / (limit + 1);
  b->share += used <= limit ? step : -step;
  if (b->share > b->total)
    b->share = b->total;
  if (b->share < 0)
    b->share = 0;
}

static void *watch(void *unused) {
  const char *directory = getenv("GPUSHARE_SIM_DIR");
  char path[108];
  int sms = 1, threads = 1;
  uint64_t at[SAMPLES] = {0}, busy[SAMPLES] = {0};
  struct timespec period = {0, WATCH_NS};
  (void)unused;
  snprintf(path, sizeof path, "%s/sim.sock", directory ? directory : ".");
  int books = books_connect(path);
  MUST(cuDeviceGetAttribute(&sms, (CUdevice_attribute)ATTRIBUTE_MULTIPROCESSORS, 0));
  MUST(cuDeviceGetAttribute(&threads, (CUdevice_attribute)39 /* threads per multiprocessor */, 0));
  struct bucket b = {(int64_t)sms * sms * threads, (int64_t)sms * threads * FACTOR, 0};
  at[0] = clock_ns();
  for (unsigned n = 1; !over(); n++) {
    nanosleep(&period, NULL);
    unsigned oldest = n > 8 ? n - 8 : 0; /* 8 periods are the last second */
    at[n % SAMPLES] = clock_ns();
    busy[n % SAMPLES] = books_process(books, options.device, getpid());
    uint64_t used = 100 * (busy[n % SAMPLES] - busy[oldest % SAMPLES]) / (at[n % SAMPLES] - at[oldest % SAMPLES]);
    adjust(&b, (int)options.limit_percent, (int)used);
    __atomic_add_fetch(&tokens, b.share, __ATOMIC_RELAXED);
    if (__atomic_load_n(&tokens, __ATOMIC_RELAXED) > b.total)
      __atomic_store_n(&tokens, b.total, __ATOMIC_RELAXED);
  }
  return NULL;
}

static void take_tokens(unsigned blocks) {
  struct timespec nap = {0, SLEEP_NS};
  if (blocks == 0)
    return;
  while (__atomic_load_n(&tokens, __ATOMIC_RELAXED) < 0 && !over())
    nanosleep(&nap, NULL);
  __atomic_sub_fetch(&tokens, blocks, __ATOMIC_RELAXED);
}

/* ---- lease ---- */

static void await_lease(void) {
  uint32_t seen;
  pthread_mutex_lock(&submitting);
  while (!((seen = load32(&mine->lease)) & 1) && !over()) {
    pthread_mutex_unlock(&submitting);
    if (!load32(&mine->waiting)) {
      store64(&mine->asked_ns, clock_ns());
      store32(&mine->waiting, 1);
      ring(page);
    }
    futex_wait(&mine->lease, seen, SLEEP_NS);
    pthread_mutex_lock(&submitting);
  }
  store32(&mine->waiting, 0);
  __atomic_store_n(&last_launch_ns, clock_ns(), __ATOMIC_RELAXED);
}

static void release(uint32_t lease) {
  pthread_mutex_lock(&submitting); /* a submission that saw the lease is through */
  pthread_mutex_unlock(&submitting);
  MUST(cuCtxSynchronize());
  store32(&mine->released, lease);
  ring(page);
}

/* Handles revokes, and gives up a lease that is not used. */
static void *hold(void *unused) {
  (void)unused;
  MUST(cuCtxSetCurrent(context));
  while (!over()) {
    uint32_t lease = load32(&mine->lease);
    uint64_t wait = SLEEP_NS;
    if (!(lease & 1)) {
      if (load32(&mine->released) != lease)
        release(lease);
    } else if (options.idle_ns && load32(&mine->give_up) != lease) {
      uint64_t idle = clock_ns() - __atomic_load_n(&last_launch_ns, __ATOMIC_RELAXED);
      if (idle >= options.idle_ns && !load32(&mine->waiting)) {
        store32(&mine->give_up, lease);
        ring(page);
      }
    }
    futex_wait(&mine->lease, lease, wait);
  }
  return NULL;
}

static void end_window(void) {
  if (!options.windows || ++launched < window)
    return;
  uint64_t start = clock_ns();
  MUST(cuCtxSynchronize());
  launched = 0;
  if (clock_ns() - start >= SLOW_NS)
    window = window > 1 ? window / 2 : 1;
  else if (window < WINDOW_MAX)
    window *= 2;
}

/* ---- both ---- */

void gate_open(const struct gate_options *asked, struct bench_page *shared, struct bench_tenant *tenant,
               CUcontext current) {
  pthread_t thread;
  options = *asked;
  page = shared;
  mine = tenant;
  context = current;
  if (options.kind == GATE_NONE)
    return;
  last_launch_ns = clock_ns();
  if (pthread_create(&thread, NULL, options.kind == GATE_TOKENS ? watch : hold, NULL) != 0) {
    perror("pthread_create");
    exit(2);
  }
  pthread_setname_np(thread, "bench-gate");
  pthread_detach(thread);
}

void gate_enter(unsigned blocks) {
  if (options.kind == GATE_TOKENS)
    take_tokens(blocks);
  if (options.kind == GATE_LEASE)
    await_lease();
}

void gate_leave(void) {
  if (options.kind != GATE_LEASE)
    return;
  pthread_mutex_unlock(&submitting);
  end_window();
}
