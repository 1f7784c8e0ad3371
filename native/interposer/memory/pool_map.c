#include "interposer/memory/pool_map.h"

#include <sys/mman.h>

#include "interposer/memory/pool_charge.h"
#include "interposer/process/device.h"

struct span {
  uint64_t at, bytes;
  bool live;
  CUstream stream; /* of one that fades */
};

/* ---- with the books' lock held ----------------------------------------------------------------------------------- */

static bool overlaps(const struct gs_entry *entry, uint64_t at, uint64_t bytes) {
  return entry->key < at + bytes && at < entry->key + entry->cap;
}

static void count_piece(enum gs_book_kind kind, uint64_t pool, uint32_t by) {
  struct gs_entry *entry = gs_book_find(GS_BOOK_POOL, pool);
  if (entry)
    *(kind == GS_BOOK_CHUNK ? &entry->chunks : &entry->faded) += by;
}

/* A place in the pool that is no live block's. */
static void add_piece(const struct gs_entry *piece) {
  gs_book_add(piece);
  count_piece(piece->kind, piece->link, 1);
}

static void remove_piece(struct gs_entry *piece) {
  enum gs_book_kind kind = piece->kind;
  uint64_t pool = piece->link;
  gs_book_remove(piece);
  count_piece(kind, pool, UINT32_MAX);
}

/* Removes what was known of this range: it was given back to the device meanwhile. */
static void clear_range(uint64_t at, uint64_t bytes) {
  static const enum gs_book_kind kinds[] = {GS_BOOK_FADED, GS_BOOK_CHUNK};
  for (unsigned i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
    uint32_t from = 0;
    for (struct gs_entry *entry; (entry = gs_book_next(kinds[i], &from));)
      if (overlaps(entry, at, bytes)) {
        remove_piece(entry);
        from = 0; /* another entry may have moved */
      }
  }
}

static void clear_pool(enum gs_book_kind kind, uint64_t pool) {
  uint32_t from = 0;
  for (struct gs_entry *entry; (entry = gs_book_next(kind, &from));)
    if (entry->link == pool) {
      remove_piece(entry);
      from = 0;
    }
}

void gs_map_forget(uint64_t pool) {
  gs_book_lock();
  clear_pool(GS_BOOK_FADED, pool);
  clear_pool(GS_BOOK_CHUNK, pool);
  gs_book_unlock();
}

void gs_map_made(uint64_t pool, uint64_t address, uint64_t bytes, uint64_t growth, CUcontext context) {
  bytes = gs_round_up(bytes, GS_BLOCK_ROUND);
  gs_book_lock();
  if (growth) {
    clear_range(address, growth);
    add_piece(&(struct gs_entry){
        .key = address, .kind = GS_BOOK_CHUNK, .ordinal = GS_NO_DEVICE, .link = pool, .cap = growth});
  }
  struct gs_entry *entry = gs_book_find(GS_BOOK_FADED, address);
  if (entry)
    remove_piece(entry);
  entry = gs_book_find(GS_BOOK_POOL, pool);
  if (entry) {
    entry->count++;
    entry->live += bytes;
  }
  gs_book_add(&(struct gs_entry){
      .key = address, .kind = GS_BOOK_BLOCK, .ordinal = GS_NO_DEVICE, .link = pool, .context = context, .cap = bytes});
  gs_book_unlock();
}

bool gs_map_take(uint64_t address, struct gs_entry *block) {
  gs_book_lock();
  struct gs_entry *entry = gs_book_find(GS_BOOK_BLOCK, address), *pool;
  if (entry) {
    *block = *entry;
    gs_book_remove(entry);
    add_piece(&(struct gs_entry){.key = address,
                                 .kind = GS_BOOK_FADED,
                                 .ordinal = GS_NO_DEVICE,
                                 .bytes = (uintptr_t)CU_STREAM_PER_THREAD,
                                 .link = block->link,
                                 .cap = block->cap});
    if ((pool = gs_book_find(GS_BOOK_POOL, block->link)))
      pool->live -= block->cap;
  }
  gs_book_unlock();
  return entry != NULL;
}

void gs_map_faded(const struct gs_entry *block, CUstream stream) {
  gs_book_lock();
  struct gs_entry *entry = gs_book_find(GS_BOOK_FADED, block->key);
  if (entry)
    entry->bytes = (uintptr_t)stream;
  gs_book_unlock();
}

bool gs_map_ended(CUcontext context, uint32_t *at, struct gs_entry *block) {
  struct gs_entry *entry, *pool;
  gs_book_lock();
  while ((entry = gs_book_next(GS_BOOK_BLOCK, at)) && entry->context != context)
    ;
  if (entry) {
    *block = *entry;
    gs_book_remove(entry);
    --*at; /* another entry may have moved here */
    if ((pool = gs_book_find(GS_BOOK_POOL, block->link)))
      pool->live -= block->cap;
  }
  gs_book_unlock();
  return entry != NULL;
}

static void unfade(const struct gs_entry *block) {
  struct gs_entry *entry = gs_book_find(GS_BOOK_FADED, block->key);
  if (entry)
    remove_piece(entry);
}

void gs_map_gone(const struct gs_entry *block) {
  gs_book_lock();
  unfade(block);
  gs_book_unlock();
}

void gs_map_put_back(const struct gs_entry *block) {
  gs_book_lock();
  unfade(block);
  gs_book_add(block);
  struct gs_entry *pool = gs_book_find(GS_BOOK_POOL, block->link);
  if (pool)
    pool->live += block->cap;
  gs_book_unlock();
}

/* ---- is there room ----------------------------------------------------------------------------------------------- */

static bool before(const struct span *a, const struct span *b) { return a->at < b->at; }

static void sift(struct span *spans, size_t from, size_t count) {
  for (size_t child; (child = 2 * from + 1) < count; from = child) {
    if (child + 1 < count && before(&spans[child], &spans[child + 1]))
      child++;
    if (!before(&spans[from], &spans[child]))
      return;
    struct span swapped = spans[from];
    spans[from] = spans[child];
    spans[child] = swapped;
  }
}

/* In place: the C library's sort may call malloc. */
static void sort(struct span *spans, size_t count) {
  for (size_t from = count / 2; from-- > 0;)
    sift(spans, from, count);
  for (size_t end = count; end-- > 1;) {
    struct span swapped = spans[0];
    spans[0] = spans[end];
    spans[end] = swapped;
    sift(spans, 0, end);
  }
}

static size_t collect(uint64_t pool, struct span *spans, size_t room) {
  static const enum gs_book_kind kinds[] = {GS_BOOK_BLOCK, GS_BOOK_FADED};
  size_t count = 0;
  for (unsigned i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
    uint32_t from = 0;
    for (struct gs_entry *entry; (entry = gs_book_next(kinds[i], &from));)
      if (entry->link == pool && count++ < room)
        spans[count - 1] =
            (struct span){entry->key, entry->cap, kinds[i] == GS_BOOK_BLOCK, (CUstream)(uintptr_t)entry->bytes};
  }
  return count;
}

/* The same stream may have back at once exactly what it gave. */
static bool given_back(const struct span *spans, size_t count, size_t i, uint64_t bytes, CUstream stream) {
  return !spans[i].live && spans[i].stream == stream && stream != CU_STREAM_PER_THREAD && spans[i].bytes == bytes &&
         (i == 0 || spans[i - 1].at + spans[i - 1].bytes <= spans[i].at) &&
         (i + 1 == count || spans[i].at + bytes <= spans[i + 1].at);
}

static size_t first_from(const struct span *spans, size_t count, uint64_t at) {
  size_t low = 0;
  while (low < count) {
    size_t middle = low + (count - low) / 2;
    if (spans[middle].at < at)
      low = middle + 1;
    else
      count = middle;
  }
  return low;
}

static bool room_in(const struct gs_entry *chunk, const struct span *spans, size_t count, uint64_t bytes,
                    CUstream stream) {
  uint64_t free_from = chunk->key, end = chunk->key + chunk->cap;
  for (size_t i = first_from(spans, count, chunk->key); i < count && spans[i].at < end; i++) {
    if ((spans[i].at > free_from && spans[i].at - free_from >= bytes) || given_back(spans, count, i, bytes, stream))
      return true;
    if (spans[i].at + spans[i].bytes > free_from)
      free_from = spans[i].at + spans[i].bytes;
  }
  return end > free_from && end - free_from >= bytes;
}

static bool lived_in(const struct gs_entry *chunk, const struct span *spans, size_t count) {
  uint64_t end = chunk->key + chunk->cap;
  for (size_t i = first_from(spans, count, chunk->key); i < count && spans[i].at < end; i++)
    if (spans[i].live)
      return true;
  return false;
}

/* The pool gave pieces back: those in which no block lives may be among them. */
static void drop_empty(uint64_t pool, const struct span *spans, size_t count) {
  uint32_t from = 0;
  for (struct gs_entry *chunk; (chunk = gs_book_next(GS_BOOK_CHUNK, &from));)
    if (chunk->link == pool && !lived_in(chunk, spans, count)) {
      remove_piece(chunk);
      from = 0;
    }
}

static bool look(uint64_t pool, uint64_t bytes, CUstream stream, const struct span *spans, size_t count) {
  uint32_t from = 0;
  for (struct gs_entry *chunk; (chunk = gs_book_next(GS_BOOK_CHUNK, &from));)
    if (chunk->link == pool && room_in(chunk, spans, count, bytes, stream))
      return true;
  return false;
}

/* What is free is in no more places than there are pieces and blocks for it to come after, so one has its share. Of the
 * freed blocks those count whose stream did not get there: each has its bytes in use. */
bool gs_map_plainly_has_room(uint64_t pool, uint64_t bytes, uint64_t reserved, uint64_t used) {
  gs_book_lock();
  struct gs_entry *entry = gs_book_find(GS_BOOK_POOL, pool);
  uint64_t places = 0, fading = 0;
  if (entry && entry->chunks > 0) {
    fading = used > entry->live ? (used - entry->live) / GS_BLOCK_ROUND : 0;
    places = entry->chunks + (uint64_t)entry->count + (fading < entry->faded ? fading : entry->faded);
  }
  gs_book_unlock();
  return places > 0 && reserved > used && (reserved - used) / places >= gs_round_up(bytes, GS_BLOCK_ROUND);
}

bool gs_map_has_room(uint64_t pool, uint64_t bytes, CUstream stream, uint64_t reserved, uint64_t used) {
  bytes = gs_round_up(bytes, GS_BLOCK_ROUND);
  bool room = false;
  gs_book_lock();
  struct gs_entry *entry = gs_book_find(GS_BOOK_POOL, pool);
  if (entry && entry->live == used) /* nothing fades any more */
    clear_pool(GS_BOOK_FADED, pool);
  size_t count = collect(pool, NULL, 0), size = (count + 1) * sizeof(struct span);
  struct span *spans = entry ? gs_private_map(size) : NULL;
  if (spans) {
    collect(pool, spans, count);
    sort(spans, count);
    entry = gs_book_find(GS_BOOK_POOL, pool);
    if (entry->flags & GS_POOL_SHRUNK || reserved < entry->seen) {
      drop_empty(pool, spans, count);
      entry = gs_book_find(GS_BOOK_POOL, pool);
      entry->flags &= ~(uint32_t)GS_POOL_SHRUNK;
      entry->seen = reserved;
    }
    room = look(pool, bytes, stream, spans, count);
    munmap(spans, size);
  }
  gs_book_unlock();
  return room;
}
