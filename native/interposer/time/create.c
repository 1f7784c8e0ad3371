#include "interposer/time/create.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

/* A tool that traces every CUDA call would show the interposer's events to its user and slows every call, so under one
 * the program is charged by residency. A loaded libcupti alone does not indicate one: frameworks link it and rarely use
 * it. */
static bool profiled(void) { return getenv("CUDA_INJECTION64_PATH") || getenv("NVTX_INJECTION64_PATH"); }

static const uint32_t always_open = GS_OPEN;

struct books {
  struct gs_meter meter;
  struct gs_stream rest;
};

static struct gs_time *create_time(void) {
  struct gs_time *time = gs_private_map(sizeof *time), *none = NULL;
  if (!time)
    return NULL;
  time->profiled = profiled();
  gs_biased_start();
  /* Neither 0 nor a parent's value: what a thread cached before a fork is stale. */
  time->generation = (uint32_t)gs_now() | 1;
  time->repeats = 1;
  gs_table_begin(&time->origins, NULL, sizeof(struct gs_origin)); /* `tables` protects it */
  for (uint32_t i = 0; i < gs_process->ndevices; i++) {
    time->device[i].ordinal = (int)i;
    time->device[i].limits = &gs_process->limits->device[i];
    time->device[i].passage = gs_passage() ? &gs_passage()->state : &always_open;
    time->device[i].slot = &gs_process->slot->device[i];
  }
  if (__atomic_compare_exchange_n(&gs_process->time, &none, time, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
    return time;
  return none;
}

static void create_books(struct gs_time *time, struct gs_time_device *device) {
  struct books *books = gs_private_map(sizeof *books);
  gs_latch_take(&time->tables);
  if (books && !device->meter) {
    books->rest.device = device;
    books->rest.live = true;
    device->rest = &books->rest;
    __atomic_store_n(&device->meter, &books->meter, __ATOMIC_RELEASE);
    books = NULL;
  }
  gs_latch_drop(&time->tables);
  if (books)
    munmap(books, sizeof *books);
}

bool gs_time_create(int ordinal) {
  struct gs_time *time = gs_time();
  int saved = errno;
  bool first;
  if (ordinal < 0 || ordinal >= (int)gs_process->ndevices)
    return false;
  if (!time)
    time = create_time();
  first = time && !__atomic_load_n(&time->device[ordinal].meter, __ATOMIC_ACQUIRE);
  if (first)
    create_books(time, &time->device[ordinal]);
  errno = saved;
  return first;
}
