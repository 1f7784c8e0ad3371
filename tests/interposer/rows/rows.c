/* Runs the rows of one group, or certain rows: rows ENTRY ORIGIN GROUP|ROW,ROW... held|gated|moved|bare.
 *   ENTRY   linked, dlsym or proc: how the row's function is found
 *   ORIGIN  where the rows run: constructor (of this library), main, late (a thread created after the main thread has
 *   finished with CUDA), exited (a thread whose main thread has called pthread_exit) */
#define _GNU_SOURCE
#include "rows.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "page/gs_page.h"

int rows_main(int argc, char **argv);

struct calls own_call;

static struct {
  const char *entry, *origin, *group;
  bool gated, moved, bare, ran;
} program;

/* ---- reads of the grant's page ---- */

static const struct gs_slot *own_slot(void) {
  static const struct gs_usage *usage;
  const char *directory = getenv("GPUSHARE_GRANT_DIR");
  if (directory == NULL)
    return NULL;
  if (usage == NULL) {
    char path[512];
    snprintf(path, sizeof path, "%s/usage", directory);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    void *at = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *usage, PROT_READ, MAP_SHARED, fd, 0);
    if (fd >= 0)
      close(fd);
    if (at == MAP_FAILED)
      return NULL;
    usage = at;
  }
  for (unsigned i = 0; i < GS_MAX_SLOTS; i++)
    if (__atomic_load_n(&usage->slot[i].state, __ATOMIC_ACQUIRE) == GS_SLOT_LIVE && usage->slot[i].pid == getpid())
      return &usage->slot[i];
  return NULL;
}

static uint64_t launches(void) {
  const struct gs_slot *slot = own_slot();
  return slot ? __atomic_load_n(&slot->device[0].launches, __ATOMIC_RELAXED) : 0;
}

/* Adds to the row's counts what the slot has of them now, or takes it from them. */
static void count(struct rows *r, bool take) {
  const struct gs_slot *slot = r->calls == 0 ? own_slot() : NULL;
  uint64_t sign = take ? UINT64_MAX : 1;
  if (slot == NULL)
    return;
  r->answers += sign * __atomic_load_n(&slot->sync_calls, __ATOMIC_RELAXED);
  r->bytes_in += sign * __atomic_load_n(&slot->host_bytes_in, __ATOMIC_RELAXED);
  r->bytes_out += sign * __atomic_load_n(&slot->host_bytes_out, __ATOMIC_RELAXED);
}

static int64_t charged(void) {
  const struct gs_slot *slot = own_slot();
  return slot ? (int64_t)__atomic_load_n(&slot->device[0].memory_bytes, __ATOMIC_RELAXED) : -1;
}

/* ---- synchronisation with the test ---- */

/* Reports its position and waits until the test continues it; EOF means that the test is gone. */
static void pause_at(const struct rows *r, const char *at) {
  char line[16];
  printf("{\"row\":\"%s\",\"at\":\"%s\",\"charged\":%lld,\"occupied\":%s}\n", r->row->symbol, at, (long long)charged(),
         r->occupied ? "true" : "false");
  fflush(stdout);
  for (size_t used = 0; used < sizeof line; used++) {
    if (read(STDIN_FILENO, line + used, 1) != 1)
      exit(3);
    if (line[used] == '\n')
      return;
  }
  exit(3);
}

static void report(const struct rows *r, const char *pointers) {
  printf("{\"row\":\"%s\",\"result\":%d,\"ok\":%s,\"refused\":%s,\"why\":\"%s\",\"calls\":%u,\"pointers\":\"%s\","
         "\"charged_after_alloc\":%lld,\"charged_after_free\":%lld,\"launches_expected\":%llu,\"launches_delta\":%llu,"
         "\"answers\":%llu,"
         "\"bytes_in\":%llu,\"bytes_out\":%llu}\n",
         r->row->symbol, r->result, r->failed ? "false" : "true", r->refused ? "true" : "false", r->why, r->calls,
         pointers, (long long)r->charged_alloc, (long long)r->charged_free, (unsigned long long)r->expected,
         (unsigned long long)r->counted, (unsigned long long)r->answers, (unsigned long long)r->bytes_in,
         (unsigned long long)r->bytes_out);
  fflush(stdout);
}

static void fail(struct rows *r, const char *what, int number) {
  if (!r->failed)
    snprintf(r->why, sizeof r->why, "%s (%d)", what, number);
  r->failed = true;
}

void expect(struct rows *r, bool condition, const char *what) {
  if (!condition)
    fail(r, what, 0);
}

void need(struct rows *r, CUresult result, const char *what) {
  if (result == CUDA_SUCCESS)
    return;
  fail(r, what, (int)result);
  report(r, "");
  _exit(4);
}

void same(struct rows *r, const void *got, const void *wanted, size_t bytes, const char *what) {
  expect(r, memcmp(got, wanted, bytes) == 0, what);
}

void meet(struct rows *r, const char *at) {
  *(strcmp(at, "allocated") == 0 ? &r->charged_alloc : &r->charged_free) = charged();
  pause_at(r, at);
}

static void submission(struct rows *r, const char *by) {
  if (r->gated)
    pause_at(r, by);
  r->expected++;
}

void lease(struct rows *r) { submission(r, "helper"); }

const struct calls *work(struct rows *r) {
  submission(r, "work");
  r->submits = true;
  count(r, true);
  return &r->call;
}

const struct calls *start(struct rows *r) {
  if (r->gated)
    pause_at(r, "start");
  count(r, true);
  return &r->call;
}

bool done_with(struct rows *r, CUresult wanted, CUresult result) {
  bool submits = r->submits;
  count(r, false);
  if (program.moved)
    pause_at(r, "done");
  r->submits = false;
  if (r->calls++ == 0)
    r->result = result;
  if (submits && result != CUDA_SUCCESS)
    r->expected--; /* a launch that the driver refused does not count */
  if (result == wanted)
    return true;
  if (r->tentative && r->calls == 1)
    r->refused = true;
  else
    fail(r, "unexpected answer", (int)result);
  return false;
}

bool done(struct rows *r, CUresult result) { return done_with(r, CUDA_SUCCESS, result); }

/* ---- memory that no row uses, for moves ---- */

enum { KEPT = 3 * BYTES };

static struct {
  CUcontext ctx;
  CUdeviceptr at;
} kept;

static void keep_memory(struct rows *r) {
  control_start();
  need(r, cuInit(0), "cuInit");
  need(r, cuCtxCreate_v2(&kept.ctx, 0, 0), "a context");
  size_t pitch;
  CUresult kept_at = program.bare
                         ? cuMemAllocPitch_v2(&kept.at, &pitch, BYTES, KEPT / BYTES, 4) /* rows too wide to move */
                         : cuMemAlloc_v2(&kept.at, KEPT);
  need(r, kept_at, "memory");
  need(r, cuMemcpyHtoD_v2(kept.at + BYTES, pattern(), BYTES), "a copy into it");
  need(r, cuCtxPopCurrent_v2(&kept.ctx), "no context");
}

static void memory_is_kept(struct rows *r) {
  need(r, cuCtxPushCurrent_v2(kept.ctx), "its context");
  holds(r, kept.at + BYTES, pattern(), BYTES);
  need(r, cuCtxPopCurrent_v2(&kept.ctx), "no context");
}

/* ---- one row ---- */

/* The row's function, found by ENTRY. *pointers: whether the other ways find the same code. */
static void *find(const struct row *row, const char **pointers) {
  void *by_name = dlsym(dlopen("libcuda.so.1", RTLD_NOW), row->symbol), *by_version = NULL;
  CUdriverProcAddressQueryResult status;
  int driver = 0;
  cuDriverGetVersion(&driver);
  int per_thread = row->per_thread ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : CU_GET_PROC_ADDRESS_LEGACY_STREAM;
  if (row->version)
    cuGetProcAddress_v2(row->base, &by_version, row->version, (cuuint64_t)per_thread, &status);
  /* a driver returns none newer than itself, but may export it */
  bool versioned = row->version && row->version <= driver;
  *pointers = by_name != row->linked      ? "dlsym differs"
              : !versioned                ? "no version"
              : by_version == NULL        ? "no address"
              : by_version == row->linked ? "same"
                                          : "address differs";
  if (strcmp(program.entry, "proc") == 0 && versioned)
    return by_version;
  return strcmp(program.entry, "dlsym") == 0 ? by_name : row->linked;
}

static void run(const struct row *row) {
  struct rows r = {.row = row, .gated = program.gated || program.moved, .charged_alloc = -1, .charged_free = -1};
  uint64_t before = launches();
  const char *pointers;
  void *function = find(row, &pointers);
  if (function == NULL) {
    fail(&r, "not found", 0);
    return report(&r, pointers);
  }
  void *called = row->adapter ? row->adapter : function;
  memcpy((char *)&own_call + row->own_slot, &function, sizeof function);
  memcpy((char *)&r.call + row->slot, &called, sizeof called);
  row->snippet(&r);
  if (r.calls == 0 && !r.failed)
    fail(&r, "was never called", 0);
  if (r.stream)
    need(&r, cuStreamDestroy_v2(r.stream), "destroy the stream");
  if (r.ctx)
    need(&r, cuCtxDestroy_v2(r.ctx), "destroy the context");
  if (kept.at)
    memory_is_kept(&r);
  r.counted = launches() - before;
  pause_at(&r, "end");
  report(&r, pointers);
}

/* Whether the list of rows has this one. */
static bool named(const char *symbol) {
  size_t length = strlen(symbol);
  for (const char *at = program.group; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
    if (strncmp(at, symbol, length) == 0 && (at[length] == ',' || at[length] == 0))
      return true;
  return false;
}

static void *run_all(void *unused) {
  if (program.moved)
    keep_memory(&(struct rows){.row = &row_table[0]});
  for (unsigned i = 0; i < row_count; i++)
    if (strcmp(row_table[i].group, program.group) == 0 || named(row_table[i].symbol))
      run(&row_table[i]);
  program.ran = true;
  return unused;
}

/* ---- where the rows run ---- */

/* An ordinary program's use of CUDA, complete before other threads start. */
static void main_uses_cuda(void) {
  static const struct row ROW = {.symbol = "main"};
  struct rows r = {.row = &ROW, .gated = program.gated};
  struct kernel k;
  kernel_ready(&r, &k, NULL);
  lease(&r);
  need(&r, cuLaunchKernel(k.function, 1, 1, 1, 1, 1, 1, 0, NULL, k.params, NULL), "the main thread's kernel");
  kernel_ran(&r, &k);
  need(&r, cuCtxDestroy_v2(r.ctx), "the main thread's context");
}

static void *run_last(void *unused) {
  run_all(unused);
  exit(0);
}

static bool in_constructor(char **argv) { return argv[1] && argv[2] && strcmp(argv[2], "constructor") == 0; }

static void configure(char **argv) {
  program.entry = argv[1];
  program.origin = argv[2];
  program.group = argv[3];
  program.gated = strcmp(argv[4], "gated") == 0;
  program.bare = strcmp(argv[4], "bare") == 0; /* nothing can be moved but what rows have */
  program.moved = program.bare || strcmp(argv[4], "moved") == 0;
}

/* glibc passes the program's arguments to constructors too */
__attribute__((constructor)) static void early(int argc, char **argv) {
  if (argc != 5 || !in_constructor(argv))
    return;
  configure(argv);
  run_all(NULL);
}

int rows_main(int argc, char **argv) {
  pthread_t thread;
  if (argc == 4 && strcmp(argv[1], "exporter") == 0)
    return exporter_main(argv[2], atoi(argv[3]));
  if (argc != 5)
    return 2;
  if (in_constructor(argv))
    return program.ran ? 0 : 5;
  configure(argv);
  if (strcmp(program.origin, "main") == 0) {
    run_all(NULL);
    return 0;
  }
  main_uses_cuda();
  bool last = strcmp(program.origin, "exited") == 0;
  if (pthread_create(&thread, NULL, last ? run_last : run_all, NULL) != 0)
    return 6;
  if (last)
    pthread_exit(NULL);
  pthread_join(thread, NULL);
  return 0;
}
