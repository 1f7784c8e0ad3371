#include "interposer/residency/movable.h"

#include <string.h>
#include <sys/mman.h>

#include "interposer/process/passage/passage.h"
#include "interposer/residency/tables.h"

enum { FIRST = 256 /* records that a list has room for at first */ };

struct gs_movables *gs_movables_own(void) {
  struct gs_movables *own = gs_movables(), *fresh;
  if (own || !(fresh = gs_private_map(sizeof *fresh)))
    return own;
  if (__atomic_compare_exchange_n(&gs_process->movables, &own, fresh, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
    return fresh;
  munmap(fresh, sizeof *fresh);
  return own;
}

/* ---- with the lock held ---- */

bool gs_list_extend(struct gs_list *list, uint32_t bytes) {
  if (list->used < list->size)
    return true;
  uint32_t size = list->size ? 2 * list->size : FIRST;
  void *fresh = gs_private_map((size_t)size * bytes);
  if (!fresh)
    return false;
  if (list->size) {
    memcpy(fresh, list->record, (size_t)list->used * bytes);
    munmap(list->record, (size_t)list->size * bytes);
  }
  list->record = fresh;
  list->size = size;
  list->bytes = bytes;
  return true;
}

static struct gs_movable *at(const struct gs_movables *own, uint32_t index) {
  return (struct gs_movable *)own->table.record + index;
}

/* The index of the first record at or above the address. */
static uint32_t index_of(const struct gs_movables *own, uint64_t address) {
  uint32_t low = 0, high = own->table.used;
  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    if (at(own, middle)->address < address)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

static struct gs_movable *exactly(const struct gs_movables *own, uint64_t address) {
  uint32_t index = index_of(own, address);
  return index < own->table.used && at(own, index)->address == address ? at(own, index) : NULL;
}

/* The one that contains the address, or begins in the `bytes` after it. */
static struct gs_movable *around(const struct gs_movables *own, uint64_t address, uint64_t bytes) {
  uint32_t index = index_of(own, address);
  if (index < own->table.used && at(own, index)->address - address < bytes)
    return at(own, index);
  if (index > 0 && address - at(own, index - 1)->address < at(own, index - 1)->bytes)
    return at(own, index - 1);
  return NULL;
}

static bool copy_out(const struct gs_movable *found, struct gs_movable *out) {
  if (found)
    *out = *found;
  return found;
}

/* Adds the record to the sums; sign -1: takes it out. */
static void count(struct gs_movables *own, const struct gs_movable *record, int64_t sign) {
  uint64_t bytes = (uint64_t)(sign * (int64_t)record->bytes);
  own->movable_bytes += record->fixed || !record->proxy ? 0 : bytes;
  own->hosted_bytes += record->where == GS_ON_HOST ? bytes : 0;
  own->clean_bytes += record->where == GS_COPIED ? bytes : 0;
}

static void publish(const struct gs_movables *own) {
  struct gs_slot_device *slot = &gs_process->slot->device[0];
  bool current = __atomic_load_n(&gs_passage()->state, __ATOMIC_SEQ_CST) == GS_WATCHED;
  __atomic_store_n(&slot->movable_bytes, own->movable_bytes, __ATOMIC_RELEASE);
  __atomic_store_n(&slot->hosted_bytes, own->hosted_bytes, __ATOMIC_RELEASE);
  __atomic_store_n(&slot->clean_bytes, current ? own->clean_bytes : 0, __ATOMIC_RELEASE);
}

/* ---- looking ---- */

bool gs_movable_overlaps(uint64_t address, uint64_t bytes) {
  struct gs_movables *own = gs_movables();
  if (!own || bytes == 0)
    return false;
  gs_lock(&own->lock);
  bool found = around(own, address, bytes) != NULL;
  gs_unlock(&own->lock);
  return found;
}

bool gs_movable_find(uint64_t address, struct gs_movable *out) {
  struct gs_movables *own = gs_movables();
  if (!own)
    return false;
  gs_lock(&own->lock);
  bool found = copy_out(around(own, address, 1), out);
  gs_unlock(&own->lock);
  return found;
}

bool gs_movable_next(uint64_t address, struct gs_movable *out) {
  struct gs_movables *own = gs_movables();
  if (!own)
    return false;
  gs_lock(&own->lock);
  uint32_t index = index_of(own, address);
  bool found = copy_out(index < own->table.used ? at(own, index) : NULL, out);
  gs_unlock(&own->lock);
  return found;
}

/* ---- changing ---- */

bool gs_movable_add(const struct gs_movable *record) {
  struct gs_movables *own = gs_movables_own();
  if (!own)
    return false;
  gs_lock(&own->lock);
  bool room = gs_list_extend(&own->table, sizeof *record);
  if (room) {
    uint32_t index = index_of(own, record->address);
    memmove(at(own, index + 1), at(own, index), (own->table.used - index) * sizeof *record);
    *at(own, index) = *record;
    own->table.used++;
    count(own, record, 1);
    publish(own);
  }
  gs_unlock(&own->lock);
  return room;
}

bool gs_movable_take(uint64_t address, uint64_t number, struct gs_movable *out) {
  struct gs_movables *own = gs_movables();
  gs_lock(&own->lock);
  struct gs_movable *found = exactly(own, address);
  bool ours = found && found->number == number && copy_out(found, out);
  if (ours) {
    uint32_t index = (uint32_t)(found - at(own, 0));
    memmove(found, found + 1, (--own->table.used - index) * sizeof *found);
    count(own, out, -1);
    publish(own);
  }
  gs_unlock(&own->lock);
  return ours;
}

bool gs_movable_leaves(uint64_t address, uint64_t number, struct gs_movable *out) {
  struct gs_movables *own = gs_movables();
  gs_lock(&own->lock);
  struct gs_movable *found = exactly(own, address);
  bool ours = found && found->number == number;
  if (ours) {
    count(own, found, -1);
    found->proxy = 0;
    count(own, found, 1);
    publish(own);
    *out = *found;
  }
  gs_unlock(&own->lock);
  return ours;
}

bool gs_movable_of(CUcontext context, struct gs_movable *out) {
  struct gs_movables *own = gs_movables();
  bool found = false;
  gs_lock(&own->lock);
  for (uint32_t i = 0; i < own->table.used && !found; i++)
    found = at(own, i)->context == context && copy_out(at(own, i), out);
  gs_unlock(&own->lock);
  return found;
}

void gs_movable_inherit(CUcontext context, CUcontext heir) {
  struct gs_movables *own = gs_movables();
  gs_lock(&own->lock);
  for (uint32_t i = 0; i < own->table.used; i++)
    if (at(own, i)->context == context)
      at(own, i)->context = heir;
  gs_unlock(&own->lock);
}

void gs_movable_fix(uint64_t address, enum gs_fixed reason) {
  struct gs_movables *own = gs_movables();
  if (!own)
    return;
  gs_lock(&own->lock);
  struct gs_movable *found = around(own, address, 1);
  if (found) {
    count(own, found, -1);
    found->fixed |= 1u << reason;
    count(own, found, 1);
    publish(own);
  }
  gs_unlock(&own->lock);
}

void gs_movable_place(const struct gs_movable *movable, enum gs_where where, uint64_t host) {
  struct gs_movables *own = gs_movables();
  gs_lock(&own->lock);
  struct gs_movable *found = exactly(own, movable->address);
  if (found && found->number == movable->number) {
    count(own, found, -1);
    found->where = where;
    found->host = host;
    count(own, found, 1);
    publish(own);
  }
  gs_unlock(&own->lock);
}

bool gs_movable_any_hosted(void) {
  struct gs_movables *own = gs_movables();
  if (!own)
    return false;
  gs_lock(&own->lock);
  bool any = own->hosted_bytes > 0;
  gs_unlock(&own->lock);
  return any;
}

void gs_movable_publish(void) {
  struct gs_movables *own = gs_movables();
  if (!own)
    return;
  gs_lock(&own->lock);
  publish(own);
  gs_unlock(&own->lock);
}
