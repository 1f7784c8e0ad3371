#include "interposer/memory/handles.h"

struct gs_handle *gs_handle_next(uint64_t handle, struct gs_handle *before) {
  return gs_table_same(&gs_books()->handles, handle, before);
}

struct gs_handle *gs_handle_find(uint64_t handle) {
  struct gs_handle *each = NULL;
  while ((each = gs_handle_next(handle, each)) && each->references <= each->leaving)
    ;
  return each;
}

struct gs_handle *gs_handle_of(uint64_t handle, uint64_t of) {
  struct gs_handle *each = NULL;
  while ((each = gs_handle_next(handle, each)) && each->object != of)
    ;
  return each;
}

void gs_handle_add(uint64_t handle, uint64_t of) {
  gs_object_hold(of);
  gs_table_add(&gs_books()->handles, &(struct gs_handle){.handle = handle, .object = of, .references = 1});
}

static void remove_handle(struct gs_handle *gone, uint64_t *freed) {
  uint64_t of = gone->object;
  gs_table_remove(&gs_books()->handles, gone);
  gs_object_drop(of, freed);
}

void gs_handle_unused(uint64_t handle, uint64_t *freed) {
  struct gs_handle *each = NULL;
  if (!gs_unused(&gs_books()->used_handles, handle))
    return;
  while ((each = gs_handle_next(handle, each)))
    if (each->references == 0) {
      remove_handle(each, freed);
      each = NULL; /* others may have moved */
    }
}

bool gs_handle_known(void *handle) {
  gs_objects_lock();
  bool known = gs_handle_find(*(const uint64_t *)handle) != NULL;
  gs_table_unlock(&gs_books()->objects);
  return known;
}

void gs_object_made(uint64_t handle, int ordinal, uint64_t bytes, enum gs_object_kind kind) {
  uint64_t freed[GS_MAX_DEVICES] = {0};
  gs_objects_lock();
  uint64_t number = gs_object_add(ordinal, bytes, kind);
  gs_handle_add(handle, number);
  gs_object_drop(number, freed);
  gs_table_unlock(&gs_books()->objects);
}

/* ---- a call that releases a handle ------------------------------------------------------------------------------- */

static struct gs_used *used(uint64_t handle) { return gs_table_find(&gs_books()->used_handles, handle); }

bool gs_handle_is_busy(uint64_t handle) {
  const struct gs_used *calls = handle ? used(handle) : NULL;
  return calls && calls->alone;
}

void gs_handle_give_up(uint64_t handle) {
  gs_objects_lock();
  struct gs_used *calls = handle ? used(handle) : NULL;
  if (calls)
    calls->alone = false;
  gs_table_unlock(&gs_books()->objects);
}

static void enter(struct gs_release *release, struct gs_handle *known, bool alone) {
  uint64_t handle = release->handle;
  if (known) {
    known->leaving++;
    release->object = known->object;
  }
  release->counted = handle && gs_table_extend(&gs_books()->used_handles, 1);
  if (!release->counted)
    return;
  gs_used(&gs_books()->used_handles, handle);
  used(handle)->alone = alone;
}

/* Begins, unless it has to wait. */
static bool begin(void *with) {
  struct gs_release *release = with;
  gs_objects_lock();
  struct gs_handle *known = gs_handle_find(release->handle);
  bool ready = !gs_handle_is_busy(release->handle) && (known || !used(release->handle));
  if (ready)
    enter(release, known, !known);
  gs_table_unlock(&gs_books()->objects);
  return ready;
}

static void begin_anyway(struct gs_release *release) {
  gs_handle_give_up(release->handle);
  gs_objects_lock();
  enter(release, gs_handle_find(release->handle), false);
  gs_table_unlock(&gs_books()->objects);
}

void gs_handle_leaves(struct gs_release *release, uint64_t handle) {
  *release = (struct gs_release){.handle = handle};
  if (!gs_making_await(&gs_books()->objects_made, begin, release))
    begin_anyway(release);
}

/* The handle has lost a reference that a call was just making. If it may name several objects, nobody knows which one
 * that was: from now on it names all of them. */
static void end_unknown(uint64_t handle, uint64_t *freed) {
  struct gs_handle *each = NULL, *only = NULL;
  struct gs_books *books = gs_books();
  uint32_t count = 0, references = 0;
  while ((each = gs_handle_next(handle, each)))
    if (each->references > 0) {
      references += each->references;
      count++;
      only = each;
    }
  if (count == 1)
    only->references--;
  if (count <= 1 || !gs_table_extend(&books->objects, 1) || !gs_table_extend(&books->bindings, count) ||
      !gs_table_extend(&books->handles, 1))
    return;
  uint64_t all = gs_object_add(GS_NO_DEVICE, 0, GS_IMPORT);
  while ((each = gs_handle_next(handle, each)))
    if (each->references > 0) {
      gs_object_bind(all, each->object, NULL);
      each->references = 0; /* gs_handle_unused removes it */
    }
  gs_handle_add(handle, all);
  gs_handle_of(handle, all)->references = references - 1;
  gs_object_drop(all, freed);
}

static bool never(void *with) {
  (void)with;
  return false;
}

void gs_handle_left(const struct gs_release *release, bool ended) {
  uint64_t freed[GS_MAX_DEVICES] = {0}, handle = release->handle;
  gs_objects_lock();
  struct gs_handle *known = release->object ? gs_handle_of(handle, release->object) : NULL;
  if (known && known->leaving > 0)
    known->leaving--;
  if (ended && known && known->references > 0) {
    known->references--;
  } else if (ended) {
    gs_table_unlock(&gs_books()->objects);
    gs_objects_wait(GS_NOT_MAKING, never, NULL);
    gs_objects_lock();
    end_unknown(handle, freed);
  }
  if (release->counted) {
    struct gs_used *calls = used(handle);
    if (calls && !release->object)
      calls->alone = false;
    gs_handle_unused(handle, freed);
  }
  gs_objects_unlock(freed);
  if (__builtin_expect(__atomic_load_n(&gs_books()->objects_made.waiters, __ATOMIC_SEQ_CST) != 0, 0))
    gs_making_wake(&gs_books()->objects_made);
}

/* ---- bindings ----------------------------------------------------------------------------------------------------
 * At one place of a multicast object they live one after the other, each made by a call of its own, which may have left
 * several records: one for each object that it may have bound. A call that unbinds ends one of them, and takes the
 * records of one out of the books, so that each call that succeeded finds one. */

struct place {
  uint64_t handle, offset, bytes;
  CUdevice device;
};

/* Bindings within a place are visited one after the other; NULL begins, as it ends. */
static struct gs_binding *next_in(const struct place *place, struct gs_handle **of, struct gs_binding *each) {
  while (*of || (*of = gs_handle_next(place->handle, NULL))) {
    while ((each = gs_table_same(&gs_books()->bindings, (*of)->object, each)))
      if (each->bytes > 0 && each->device == place->device && each->offset - place->offset < place->bytes &&
          each->bytes <= place->bytes - (each->offset - place->offset))
        return each;
    if (!(*of = gs_handle_next(place->handle, *of)))
      break;
  }
  return NULL;
}

/* The first that a call made; leaving with this call, or 0: any. */
static struct gs_binding *first_made(const struct place *place, uint64_t leaving) {
  struct gs_binding *each = NULL, *first = NULL;
  for (struct gs_handle *of = NULL; (each = next_in(place, &of, each));)
    if ((leaving == 0 || each->life.call == leaving) && (!first || each->made < first->made))
      first = each;
  return first;
}

static void turn(const struct place *place, struct gs_life from, struct gs_life to) {
  struct gs_binding *each = NULL;
  for (struct gs_handle *of = NULL; (each = next_in(place, &of, each));)
    if (each->life.moment == from.moment && each->life.call == from.call)
      each->life = to;
}

static void remove_made(const struct place *place, uint64_t made, uint64_t *freed) {
  struct gs_binding *each = NULL;
  for (struct gs_handle *of = NULL; (each = next_in(place, &of, each));)
    if (each->made == made) {
      uint64_t memory = each->memory;
      gs_table_remove(&gs_books()->bindings, each);
      gs_object_drop(memory, freed);
      of = NULL; /* others may have moved */
      each = NULL;
    }
}

/* Ends one of those that the call let leave, at each offset: all of them are gone, and the others ended by other calls.
 * False: there is none. */
static bool end_own(const struct place *place, uint64_t call, uint64_t *freed) {
  const struct gs_binding *own;
  bool any = false;
  for (; (own = first_made(place, call)); any = true) {
    const struct place here = {place->handle, own->offset, own->bytes, place->device};
    remove_made(&here, own->made, freed);
    turn(&here, (struct gs_life){call, GS_LEAVING}, (struct gs_life){0, GS_LIVE});
  }
  return any;
}

/* Ends the oldest one. If another was made at the same time, either may be the oldest: they become one, whose records
 * stay until it ends. If there are several offsets, the call may have ended only one, and nothing is known. */
static void end_oldest(const struct place *place, uint64_t *freed) {
  struct gs_binding *oldest = first_made(place, 0), *each = NULL;
  if (!oldest)
    return;
  uint64_t made = oldest->made, settled = oldest->settled, offset = oldest->offset, other = 0;
  struct gs_life life = oldest->life;
  for (struct gs_handle *of = NULL; (each = next_in(place, &of, each));) {
    if (each->offset != offset)
      return;
    if (each->made != made && each->made < settled) {
      other = each->made;
      life = each->life;
    }
  }
  if (!other) {
    remove_made(place, made, freed);
    return;
  }
  for (struct gs_handle *of = NULL; (each = next_in(place, &of, each));)
    settled = each->made == other && each->settled > settled ? each->settled : settled;
  for (struct gs_handle *of = NULL; (each = next_in(place, &of, each));)
    if (each->made == made || each->made == other) {
      each->made = made;
      each->settled = settled;
      each->life = life;
    }
}

uint64_t gs_bindings_leave(uint64_t handle, CUdevice device, uint64_t offset, uint64_t bytes) {
  uint64_t call = gs_next_call();
  gs_objects_lock();
  turn(&(struct place){handle, offset, bytes, device}, (struct gs_life){0, GS_LIVE},
       (struct gs_life){call, GS_LEAVING});
  gs_table_unlock(&gs_books()->objects);
  return call;
}

void gs_bindings_left(uint64_t handle, CUdevice device, uint64_t offset, uint64_t bytes, uint64_t call, bool ended) {
  uint64_t freed[GS_MAX_DEVICES] = {0};
  const struct place place = {handle, offset, bytes, device};
  gs_objects_lock();
  if (!ended) {
    turn(&place, (struct gs_life){call, GS_LEAVING}, (struct gs_life){0, GS_LIVE});
  } else if (!end_own(&place, call, freed)) { /* another call ended ours, and we what that one was to end */
    gs_table_unlock(&gs_books()->objects);
    gs_objects_wait(GS_NOT_MAKING, never, NULL);
    gs_objects_lock();
    end_oldest(&place, freed);
  }
  gs_objects_unlock(freed);
}
