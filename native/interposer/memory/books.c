/* One open-addressed table in memory of our own, under one lock. A fork's child sees none of it. */
#include "interposer/memory/books.h"

#include <string.h>
#include <sys/mman.h>

#include "interposer/process/greens.h"

enum { FIRST_SIZE = 1024 /* entries, a power of two; doubles at three quarters */ };

struct gs_books {
  uint32_t lock;
  uint32_t size, used;
  struct gs_entry *table;
};

static struct gs_books *books(void) {
  struct gs_books *own = __atomic_load_n(&gs_process->books, __ATOMIC_ACQUIRE);
  if (own)
    return own;
  struct gs_books *fresh = gs_private_map(sizeof *fresh);
  if (!fresh || __atomic_compare_exchange_n(&gs_process->books, &own, fresh, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
    return fresh;
  munmap(fresh, sizeof *fresh);
  return own;
}

static uint32_t home(const struct gs_books *own, uint32_t kind, uint64_t key) {
  uint64_t mixed = (key ^ (uint64_t)kind << 56) * 0x9e3779b97f4a7c15u; /* 2^64 over the golden ratio */
  return (uint32_t)(mixed >> 32) & (own->size - 1);
}

void gs_book_lock(void) {
  struct gs_books *own = books();
  if (own)
    gs_lock(&own->lock);
}

void gs_book_unlock(void) {
  if (gs_process->books)
    gs_unlock(&gs_process->books->lock);
}

static void insert(struct gs_books *own, const struct gs_entry *entry) {
  uint32_t at = home(own, entry->kind, entry->key);
  while (own->table[at].kind != GS_BOOK_FREE)
    at = (at + 1) & (own->size - 1);
  own->table[at] = *entry;
  own->used++;
}

static bool grow(struct gs_books *own) {
  struct gs_books bigger = {.size = own->size ? own->size * 2 : FIRST_SIZE};
  bigger.table = gs_private_map(bigger.size * sizeof *bigger.table);
  if (!bigger.table)
    return false;
  for (uint32_t i = 0; i < own->size; i++)
    if (own->table[i].kind != GS_BOOK_FREE)
      insert(&bigger, &own->table[i]);
  if (own->table)
    munmap(own->table, own->size * sizeof *own->table);
  own->table = bigger.table;
  own->size = bigger.size;
  return true;
}

bool gs_book_room(unsigned more) {
  struct gs_books *own = books();
  if (!own)
    return false;
  gs_lock(&own->lock);
  bool room = true;
  /* threads between room and add are few: the last quarter is theirs */
  while (room && (own->used + more) * 4ull >= own->size * 3ull)
    room = grow(own);
  gs_unlock(&own->lock);
  return room;
}

struct gs_entry *gs_book_find(enum gs_book_kind kind, uint64_t key) {
  struct gs_books *own = gs_process->books;
  if (!own || !own->size)
    return NULL;
  for (uint32_t at = home(own, kind, key); own->table[at].kind != GS_BOOK_FREE; at = (at + 1) & (own->size - 1))
    if (own->table[at].kind == kind && own->table[at].key == key)
      return &own->table[at];
  return NULL;
}

void gs_book_add(const struct gs_entry *entry) {
  struct gs_books *own = gs_process->books;
  struct gs_entry kept = *entry;
  kept.context = gs_context_owner(entry->context);
  if (own->used + 1 < own->size || grow(own))
    insert(own, &kept);
}

/* Entries that probed past the hole move back into it, so that a search may stop at the first free place. */
void gs_book_remove(struct gs_entry *entry) {
  struct gs_books *own = gs_process->books;
  uint32_t mask = own->size - 1, hole = (uint32_t)(entry - own->table), at = hole;
  own->used--;
  for (;;) {
    at = (at + 1) & mask;
    if (own->table[at].kind == GS_BOOK_FREE)
      break;
    uint32_t wants = home(own, own->table[at].kind, own->table[at].key);
    if (((at - wants) & mask) >= ((at - hole) & mask)) {
      own->table[hole] = own->table[at];
      hole = at;
    }
  }
  memset(&own->table[hole], 0, sizeof own->table[hole]);
}

struct gs_entry *gs_book_next(enum gs_book_kind kind, uint32_t *at) {
  struct gs_books *own = gs_process->books;
  while (own && *at < own->size) {
    struct gs_entry *entry = &own->table[(*at)++];
    if (entry->kind == kind)
      return entry;
  }
  return NULL;
}

void gs_book_put(const struct gs_entry *entry) {
  gs_book_lock();
  gs_book_add(entry);
  gs_book_unlock();
}

bool gs_book_take(enum gs_book_kind kind, uint64_t key, struct gs_entry *out) {
  gs_book_lock();
  struct gs_entry *entry = gs_book_find(kind, key);
  if (entry) {
    *out = *entry;
    gs_book_remove(entry);
  }
  gs_book_unlock();
  return entry != NULL;
}

void gs_book_drop_link(enum gs_book_kind kind, uint64_t link) {
  gs_book_lock();
  struct gs_books *own = gs_process->books;
  for (uint32_t i = 0; own && i < own->size;) {
    struct gs_entry *entry = &own->table[i];
    if (entry->kind == kind && entry->link == link)
      gs_book_remove(entry); /* another entry may have moved here: look again */
    else
      i++;
  }
  gs_book_unlock();
}

void gs_book_drop_context(CUcontext context, uint64_t bytes[GS_MAX_DEVICES]) {
  memset(bytes, 0, GS_MAX_DEVICES * sizeof *bytes);
  gs_book_lock();
  struct gs_books *own = gs_process->books;
  for (uint32_t i = 0; own && i < own->size;) {
    struct gs_entry *entry = &own->table[i];
    if (entry->kind == GS_BOOK_FREE || entry->context != context) {
      i++;
      continue;
    }
    if (entry->ordinal >= 0)
      bytes[entry->ordinal] += entry->bytes;
    gs_book_remove(entry); /* another entry may have moved here: look again */
  }
  gs_book_unlock();
}
