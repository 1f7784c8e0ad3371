#include "interposer/memory/mappings.h"

static bool contains(const struct gs_mapping *mapping, uint64_t address) {
  return address - mapping->address < mapping->bytes;
}

void gs_mapping_turn(struct gs_mapping *mapping, enum gs_moment moment, uint64_t call) {
  gs_books()->unsettled += (moment != GS_LIVE) - (mapping->life.moment != GS_LIVE);
  mapping->life = (struct gs_life){.moment = moment, .call = call};
}

void gs_mapping_announce(uint64_t address, uint64_t bytes, uint64_t of, uint64_t call, CUcontext context) {
  struct gs_mapping fresh = {.address = address, .bytes = bytes, .object = of, .made = call, .context = context};
  gs_object_hold(of);
  gs_mapping_turn(&fresh, GS_ANNOUNCED, call);
  gs_table_add(&gs_books()->mappings, &fresh);
}

void gs_mapping_remove(struct gs_mapping *gone, uint64_t *freed) {
  uint64_t of = gone->object;
  gs_mapping_turn(gone, GS_LIVE, 0);
  gs_table_remove(&gs_books()->mappings, gone);
  gs_object_drop(of, freed);
}

static bool used_inside(const struct gs_mapping *mapping) {
  const struct gs_used *used;
  const struct gs_table *all = &gs_books()->used_addresses;
  for (uint32_t at = 0; all->used > 0 && (used = gs_table_next(all, &at));)
    if (contains(mapping, used->key))
      return true;
  return false;
}

/* One at this address in the given moment; of the call, or 0: of any. */
struct gs_mapping *gs_mapping_at(uint64_t address, enum gs_moment moment, uint64_t call) {
  struct gs_mapping *each = NULL, *oldest = NULL;
  while ((each = gs_table_same(&gs_books()->mappings, address, each)))
    if (each->life.moment == moment && (call == 0 || each->life.call == call) && (!oldest || each->made < oldest->made))
      oldest = each;
  return oldest;
}

/* The first such mapping in [from, to). Programs unmap the ranges that they mapped, so no scan is needed but where the
 * driver is going to refuse. */
static struct gs_mapping *mapping_in(uint64_t from, uint64_t to, enum gs_moment moment, uint64_t call) {
  struct gs_mapping *first = gs_mapping_at(from, moment, call), *each;
  for (uint32_t at = 0; !first && (each = gs_table_next(&gs_books()->mappings, &at));)
    if (each->address >= from && each->address < to && each->life.moment == moment &&
        (call == 0 || each->life.call == call) && (!first || each->address < first->address))
      first = each;
  return first;
}

/* What happens to the mappings in a range. Returns how much of it they cover. */
struct change {
  uint64_t from, to;
  enum gs_moment moment; /* of those that change */
  uint64_t call;         /* of those that change; 0: of any */
  bool oldest;           /* only what one call made at each address */
  enum gs_moment becomes;
  uint64_t by;     /* the call of their new moment */
  uint64_t *freed; /* for those that become GS_GONE */
};

static void change_one(struct gs_mapping *mapping, const struct change *change) {
  if (change->becomes != GS_GONE || used_inside(mapping))
    gs_mapping_turn(mapping, change->becomes, change->by);
  else
    gs_mapping_remove(mapping, change->freed);
}

static uint64_t change_mappings(const struct change *change) {
  uint64_t covered = 0;
  struct gs_mapping *mapping;
  for (uint64_t at = change->from, bytes; at < change->to; at += bytes, covered += bytes) {
    mapping = mapping_in(at, change->to, change->moment, change->call);
    if (!mapping)
      break;
    at = mapping->address;
    bytes = mapping->bytes;
    for (uint64_t made = mapping->made; mapping && (!change->oldest || mapping->made == made);
         mapping = gs_mapping_at(at, change->moment, change->call))
      change_one(mapping, change);
  }
  return covered;
}

void gs_mapping_unused(uint64_t address, uint64_t *freed) {
  struct gs_mapping *each;
  if (!gs_unused(&gs_books()->used_addresses, address) || gs_books()->unsettled == 0)
    return;
  for (uint32_t at = 0; (each = gs_table_next(&gs_books()->mappings, &at));)
    if (each->life.moment == GS_GONE && contains(each, address) && !used_inside(each)) {
      gs_mapping_remove(each, freed);
      at--; /* the last one has moved here */
    }
}

/* Mappings that contain the address are visited one after the other; NULL ends, as it begins. */
static struct gs_mapping *next_mapping_of(uint64_t address, uint32_t *at) {
  struct gs_mapping *each;
  while ((each = gs_table_next(&gs_books()->mappings, at)))
    if (contains(each, address))
      return each;
  return NULL;
}

struct gs_inside gs_mapping_inside(uint64_t address) {
  CUdeviceptr base = 0;
  gs_objects_lock();
  bool begins = gs_mapping_at(address, GS_LIVE, 0) != NULL;
  gs_table_unlock(&gs_books()->objects);
  if (begins || gs_real.cuMemGetAddressRange_v2(&base, NULL, address) != CUDA_SUCCESS)
    base = address;
  return (struct gs_inside){address, base};
}

/* The only one that begins at the base, if it is live. */
static struct gs_mapping *based(const struct gs_inside *inside) {
  struct gs_mapping *one = gs_mapping_at(inside->base, GS_LIVE, 0);
  const struct gs_table *all = &gs_books()->mappings;
  bool only = one && gs_table_same(all, inside->base, gs_table_same(all, inside->base, NULL)) == NULL;
  return only && contains(one, inside->address) ? one : NULL;
}

bool gs_mapping_known(void *with) {
  const struct gs_inside *inside = with;
  const struct gs_mapping *each;
  uint32_t at = 0;
  gs_objects_lock();
  bool known = based(inside) != NULL;
  while (!known && (each = next_mapping_of(inside->address, &at)))
    known = each->life.moment == GS_LIVE || each->life.moment == GS_ANNOUNCED;
  gs_table_unlock(&gs_books()->objects);
  return known;
}

/* A new object that holds all to which the address may have referred during the use: the one, if it is only one. The
 * caller is a holder. */
uint64_t gs_mapping_object(const struct gs_inside *inside, uint64_t *freed) {
  const struct gs_mapping *each = based(inside);
  uint32_t at = 0;
  uint64_t only = 0;
  if (each && gs_books()->unsettled == 0) {
    gs_object_hold(each->object);
    return each->object;
  }
  uint64_t all = gs_object_add(GS_NO_DEVICE, 0, GS_IMPORT);
  unsigned count = 0;
  while ((each = next_mapping_of(inside->address, &at)))
    if (gs_object_find(each->object) && !gs_object_is_bound(all, each->object)) {
      gs_object_bind(all, only = each->object, NULL);
      count++;
    }
  if (count != 1)
    return all;
  gs_object_hold(only);
  gs_object_drop(all, freed);
  return only;
}

uint64_t gs_mappings_leave(uint64_t from, uint64_t bytes) {
  uint64_t call = gs_next_call();
  gs_objects_lock();
  change_mappings(
      &(struct change){.from = from, .to = from + bytes, .moment = GS_LIVE, .becomes = GS_LEAVING, .by = call});
  gs_table_unlock(&gs_books()->objects);
  return call;
}

struct range {
  uint64_t from, bytes, missing;
};

static bool range_known(void *with) {
  const struct range *range = with;
  const struct gs_mapping *each;
  uint64_t covered = 0;
  gs_objects_lock();
  for (uint32_t at = 0; (each = gs_table_next(&gs_books()->mappings, &at));)
    if (each->address - range->from < range->bytes && (each->life.moment == GS_LIVE || each->life.moment == GS_LEAVING))
      covered += each->bytes;
  gs_table_unlock(&gs_books()->objects);
  return covered >= range->missing;
}

void gs_mappings_left(uint64_t from, uint64_t bytes, uint64_t call, bool ended) {
  uint64_t freed[GS_MAX_DEVICES] = {0}, to = from + bytes;
  gs_objects_lock();
  struct change change = {.from = from, .to = to, .moment = GS_LEAVING, .call = call, .freed = freed};
  change.becomes = ended ? GS_GONE : GS_LIVE;
  change.oldest = ended; /* books.h */
  uint64_t covered = change_mappings(&change);
  if (ended) { /* what was mapped there later lives on */
    change.becomes = GS_LIVE;
    change.oldest = false;
    change_mappings(&change);
    change.becomes = GS_GONE;
  }
  if (ended && covered < bytes) { /* another call ended ours, and we what that one was to end */
    gs_table_unlock(&gs_books()->objects);
    gs_objects_wait(GS_NOT_MAKING, range_known, &(struct range){from, bytes, bytes - covered});
    gs_objects_lock();
    change.call = 0;
    change.oldest = true;
    covered += change_mappings(&change);
    change.moment = GS_LIVE;
    if (covered < bytes)
      change_mappings(&change);
  }
  gs_objects_unlock(freed);
}

/* ---- buffers and arrays of external memory ----------------------------------------------------------------------- */

void gs_buffer_gone(uint64_t address, uint64_t made) {
  uint64_t freed[GS_MAX_DEVICES] = {0};
  struct gs_mapping *each = NULL;
  gs_objects_lock();
  while ((each = gs_table_same(&gs_books()->mappings, address, each)))
    if (each->made == made && each->life.moment == GS_LIVE) {
      change_one(each, &(struct change){.becomes = GS_GONE, .freed = freed});
      each = NULL; /* others may have moved */
    }
  gs_objects_unlock(freed);
}

void gs_buffers_context_gone(CUcontext context) {
  uint64_t freed[GS_MAX_DEVICES] = {0};
  struct gs_mapping *each;
  gs_objects_lock();
  for (uint32_t at = 0; (each = gs_table_next(&gs_books()->mappings, &at));)
    if (each->context && each->context == context) {
      gs_mapping_remove(each, freed);
      at = 0; /* an import that ended may have taken others along */
    }
  gs_objects_unlock(freed);
}
