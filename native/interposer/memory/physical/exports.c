#include "interposer/memory/physical/exports.h"

#include "interposer/memory/physical/handles.h"
#include "interposer/os/files/descriptor.h"

enum { PID_SHIFT = 40 /* the locked byte of a descriptor: host pid, then a number unique in this process */ };

/* ---- with the lock of objects.h held ----------------------------------------------------------------------------- */

static bool is_closed(const struct gs_export *one) {
  return one->holds && !gs_descriptor_is_open(one->watcher, one->name, one->byte);
}

/* Records the export of an object: in a record of the same name and object that no open descriptor needs, or else in a
 * new one. */
static void name(uint64_t number, const struct gs_export *as) {
  struct gs_export *each = NULL, fresh = *as;
  struct gs_object *one = gs_object_find(number);
  fresh.object = number;
  if (!one)
    return;
  while ((each = gs_table_same(&gs_books()->exports, as->name, each)))
    if (each->object == number && (!as->holds || !each->holds || is_closed(each)))
      break;
  one->exported = true;
  if (as->holds && !(each && each->holds)) {
    one->holders++;
    one->descriptors++;
  }
  if (!each)
    gs_table_add(&gs_books()->exports, &fresh);
  else if (as->holds)
    *each = fresh;
}

static void hold_exports(uint64_t holder, uint64_t as) {
  struct gs_export *each = NULL;
  while ((each = gs_table_same(&gs_books()->exports, as, each)))
    if (!gs_object_is_bound(holder, each->object))
      gs_object_bind(holder, each->object, NULL);
}

/* ------------------------------------------------------------------------------------------------------------------ */

/* Descriptors of one file, which drivers may use for all exports, share a watcher. */
static struct gs_export watched(uint64_t as, int fd) {
  static uint64_t numbers;
  struct gs_export fresh = {.name = as, .watcher = -1, .holds = fd >= 0};
  if (!fresh.holds)
    return fresh;
  const struct gs_export *known = gs_table_find(&gs_books()->exports, as);
  fresh.byte = (uint64_t)gs_process->host_pid << PID_SHIFT | __atomic_add_fetch(&numbers, 1, __ATOMIC_RELAXED);
  if (gs_descriptor_lock(fd, fresh.byte))
    fresh.watcher = known ? known->watcher : gs_descriptor_watcher(fd);
  return fresh;
}

/* An import is exported as all the objects that it may be: no import is bound to another. */
void gs_object_exported(const struct gs_use *use, uint64_t as, int fd) {
  struct gs_handle *each = NULL;
  gs_objects_lock();
  struct gs_export fresh = watched(as, fd);
  while ((each = gs_handle_next(use->call->handle, each))) {
    const struct gs_object *one = gs_object_find(each->object);
    struct gs_binding *may = NULL;
    if (one && one->kind != GS_IMPORT)
      name(each->object, &fresh);
    else
      while ((may = gs_table_same(&gs_books()->bindings, each->object, may)))
        name(may->memory, &fresh);
  }
  if (!gs_table_find(&gs_books()->exports, as))
    gs_descriptor_unwatch(fresh.watcher, as); /* it was nothing of ours */
  gs_table_unlock(&gs_books()->objects);
}

void gs_import_begin(struct gs_use *use, uint64_t as) {
  gs_objects_lock();
  use->holder = gs_object_add(GS_NO_DEVICE, 0, GS_IMPORT);
  hold_exports(use->holder, as);
  gs_table_unlock(&gs_books()->objects);
}

void gs_import_end(const struct gs_use *use, uint64_t handle) {
  uint64_t freed[GS_MAX_DEVICES] = {0};
  gs_objects_lock();
  if (handle) /* also if the driver returned it before: what it named then may have ended */
    gs_handle_add(handle, use->holder);
  gs_object_drop(use->holder, freed);
  gs_objects_unlock(freed);
}

static void let_go(struct gs_export *closed, uint64_t *freed) {
  closed->holds = false;
  struct gs_object *one = gs_object_find(closed->object);
  if (one)
    one->descriptors--;
  gs_object_drop(closed->object, freed);
}

void gs_descriptors_settle(void) {
  uint64_t freed[GS_MAX_DEVICES] = {0};
  struct gs_table *exports = &gs_books()->exports;
  struct gs_export *each;
  if (__atomic_load_n(&exports->used, __ATOMIC_RELAXED) == 0)
    return;
  gs_objects_lock();
  for (uint32_t at = 0; (each = gs_table_next(exports, &at));) {
    const struct gs_object *one = each->holds ? gs_object_find(each->object) : NULL;
    if (one && one->holders == one->descriptors && is_closed(each)) {
      let_go(each, freed);
      at = 0; /* its records are gone if this was the last holder */
    }
  }
  gs_objects_unlock(freed);
}
