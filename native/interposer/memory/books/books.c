#include "interposer/memory/books/books.h"

#include <string.h>
#include <sys/mman.h>

static void begin(struct gs_books *books) {
  uint32_t *lock = books->lock;
  gs_table_begin(&books->pointers, lock, sizeof(struct gs_allocation));
  gs_table_begin(&books->arrays, ++lock, sizeof(struct gs_allocation));
  gs_table_begin(&books->contexts, ++lock, sizeof(struct gs_created));
  gs_table_begin(&books->replaced, lock, sizeof(struct gs_replaced));
  gs_table_begin(&books->objects, ++lock, sizeof(struct gs_object));
  gs_table_begin(&books->handles, lock, sizeof(struct gs_handle));
  gs_table_begin(&books->mappings, lock, sizeof(struct gs_mapping));
  gs_table_begin(&books->bindings, lock, sizeof(struct gs_binding));
  gs_table_begin(&books->exports, lock, sizeof(struct gs_export));
  gs_table_begin(&books->modules, ++lock, sizeof(struct gs_module));
  gs_table_begin(&books->libraries, ++lock, sizeof(struct gs_library));
  gs_table_begin(&books->placed, lock, sizeof(struct gs_placed));
  gs_table_begin(&books->kernels, lock, sizeof(struct gs_kernel));
  gs_table_begin(&books->collectives, ++lock, sizeof(struct gs_collective));
  gs_table_begin(&books->taken, ++lock, sizeof(struct gs_taken));
  gs_table_begin(&books->pools, ++lock, sizeof(struct gs_pool));
  gs_table_begin(&books->pool_handles, lock, sizeof(struct gs_pool_handle));
  gs_table_begin(&books->loose_pools, lock, sizeof(struct gs_loose_pool));
  gs_table_begin(&books->blocks, lock, sizeof(struct gs_block));
  gs_table_begin(&books->queued, lock, sizeof(struct gs_queued));
  gs_table_begin(&books->fading, ++lock, sizeof(struct gs_fading));
  gs_table_begin(&books->fading_lines, lock, sizeof(struct gs_fading_line));
  gs_table_begin(&books->graphs, ++lock, sizeof(struct gs_graph));
  gs_table_begin(&books->nodes, ++lock, sizeof(struct gs_node));
  gs_table_begin(&books->bodies, ++lock, sizeof(struct gs_bodies));
}

struct gs_books *gs_books(void) {
  static struct gs_books none;
  struct gs_books *own = __atomic_load_n(&gs_process->books, __ATOMIC_ACQUIRE);
  if (GS_LIKELY(own))
    return own;
  struct gs_books *fresh = gs_private_map(sizeof *fresh);
  if (!fresh)
    return &none;
  begin(fresh);
  if (__atomic_compare_exchange_n(&gs_process->books, &own, fresh, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
    return fresh;
  munmap(fresh, sizeof *fresh);
  return own;
}

/* ---- the end of a context ---------------------------------------------------------------------------------------- */

struct ended {
  CUcontext context, heir; /* NULL: what is in the context ends with it */
  uint64_t *bytes;         /* what was charged, by ordinal */
};

static bool dies(const struct ended *ended, CUcontext *context, int ordinal, uint64_t bytes) {
  if (*context != ended->context)
    return false;
  *context = ended->heir;
  if (!ended->heir && ordinal >= 0)
    ended->bytes[ordinal] += bytes;
  return !ended->heir;
}

/* If a call that ends the record's object is in progress, turns the record into that call's GS_ENDING and returns
 * true. */
static bool call_stays(struct gs_living *living) {
  if (living->life.moment != GS_LEAVING)
    return false;
  living->life.moment = GS_ENDING;
  return true;
}

static bool allocation_dies(const void *record, void *with) {
  struct gs_allocation *allocation = (struct gs_allocation *)(uintptr_t)record;
  return dies(with, &allocation->context, allocation->ordinal, allocation->bytes) && !call_stays(&allocation->living);
}

static bool created_dies(const void *record, void *with) {
  const struct gs_created *created = record;
  CUcontext context = (CUcontext)(uintptr_t)created->context;
  return dies(with, &context, created->ordinal, created->bytes);
}

static bool taken_dies(const void *record, void *with) {
  struct gs_taken *taken = (struct gs_taken *)(uintptr_t)record;
  return dies(with, &taken->context, taken->ordinal, taken->bytes);
}

/* Modules are charged as code of their context. */
static bool module_dies(const void *record, void *with) {
  struct gs_module *module = (struct gs_module *)(uintptr_t)record;
  return dies(with, &module->context, GS_NO_DEVICE, 0) && !call_stays(&module->living);
}

static bool placed_dies(const void *record, void *with) {
  return dies(with, &((struct gs_placed *)(uintptr_t)record)->context, GS_NO_DEVICE, 0);
}

static bool collective_dies(const void *record, void *with) {
  return dies(with, &((struct gs_collective *)(uintptr_t)record)->context, GS_NO_DEVICE, 0);
}

static void drop_in_context(struct ended *ended) {
  struct gs_books *books = gs_books();
  gs_table_drop(&books->pointers, allocation_dies, ended);
  gs_table_drop(&books->arrays, allocation_dies, ended);
  gs_table_drop(&books->modules, module_dies, ended);
  gs_table_drop(&books->placed, placed_dies, ended);
  gs_table_drop(&books->collectives, collective_dies, ended);
  gs_table_drop(&books->taken, taken_dies, ended);
}

void gs_books_drop_context(CUcontext context, uint64_t bytes[GS_MAX_DEVICES]) {
  struct ended ended = {context, NULL, bytes};
  memset(bytes, 0, GS_MAX_DEVICES * sizeof *bytes);
  drop_in_context(&ended);
  gs_table_drop(&gs_books()->contexts, created_dies, &ended);
}

void gs_books_move_context(CUcontext context, CUcontext heir) {
  if (heir && heir != context)
    drop_in_context(&(struct ended){context, heir, NULL});
}
