#include "interposer/residency/movable.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "interposer/memory/books/charge.h"
#include "interposer/memory/books/life.h"
#include "interposer/memory/books/sizes.h"
#include "interposer/process/device.h"
#include "interposer/process/passage.h"

enum {
  STEP = 2 << 20,  /* of addresses and of memory, where the driver does not ask for more */
  PIECE = 1 << 30, /* most bytes of one handle: mapping costs by the handle, not by the byte */
  FIRST = 256      /* records that a table has room for at first */
};

/* A freed one whose memory may still be used by work in flight. */
struct later {
  struct gs_movable movable;
  CUevent event;     /* recorded behind that work; NULL: all work of the context */
  CUcontext context; /* of the event */
};

struct list {
  void *record;
  uint32_t used, size, bytes; /* bytes: of a record */
};

struct gs_movables {
  uint32_t lock;     /* of the lists */
  uint32_t refused;  /* 1: the driver cannot map memory, and allocates by itself */
  uint64_t step;     /* granularity; 0: not known yet */
  struct list table; /* struct gs_movable, by address */
  struct list later; /* struct later */
};

static struct gs_movables *movables(void) { return __atomic_load_n(&gs_process->movables, __ATOMIC_ACQUIRE); }

/* NULL: out of memory. */
static struct gs_movables *own_movables(void) {
  struct gs_movables *own = movables(), *fresh;
  if (own || !(fresh = gs_private_map(sizeof *fresh)))
    return own;
  fresh->table.bytes = sizeof(struct gs_movable);
  fresh->later.bytes = sizeof(struct later);
  if (__atomic_compare_exchange_n(&gs_process->movables, &own, fresh, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
    return fresh;
  munmap(fresh, sizeof *fresh);
  return own;
}

/* ---- lists, with the lock held ---- */

static bool extend(struct list *list) {
  if (list->used < list->size)
    return true;
  uint32_t size = list->size ? 2 * list->size : FIRST;
  void *fresh = gs_private_map((size_t)size * list->bytes);
  if (!fresh)
    return false;
  if (list->size) {
    memcpy(fresh, list->record, (size_t)list->used * list->bytes);
    munmap(list->record, (size_t)list->size * list->bytes);
  }
  list->record = fresh;
  list->size = size;
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

static bool insert(struct gs_movables *own, const struct gs_movable *record) {
  if (!extend(&own->table))
    return false;
  uint32_t index = index_of(own, record->address);
  memmove(at(own, index + 1), at(own, index), (own->table.used - index) * sizeof *record);
  *at(own, index) = *record;
  own->table.used++;
  return true;
}

static void remove_at(struct gs_movables *own, struct gs_movable *record) {
  uint32_t index = (uint32_t)(record - at(own, 0));
  memmove(record, record + 1, (--own->table.used - index) * sizeof *record);
}

/* ---- looking ---- */

bool gs_movable_overlaps(uint64_t address, uint64_t bytes) {
  struct gs_movables *own = movables();
  if (!own || bytes == 0)
    return false;
  gs_lock(&own->lock);
  bool found = around(own, address, bytes) != NULL;
  gs_unlock(&own->lock);
  return found;
}

static bool copy_out(const struct gs_movable *found, struct gs_movable *out) {
  if (found)
    *out = *found;
  return found;
}

bool gs_movable_find(uint64_t address, struct gs_movable *out) {
  struct gs_movables *own = movables();
  if (!own)
    return false;
  gs_lock(&own->lock);
  bool found = copy_out(around(own, address, 1), out);
  gs_unlock(&own->lock);
  return found;
}

bool gs_movable_next(uint64_t address, struct gs_movable *out) {
  struct gs_movables *own = movables();
  if (!own)
    return false;
  gs_lock(&own->lock);
  uint32_t index = index_of(own, address);
  bool found = copy_out(index < own->table.used ? at(own, index) : NULL, out);
  gs_unlock(&own->lock);
  return found;
}

void gs_movable_fix(uint64_t address, enum gs_fixed reason) {
  struct gs_movables *own = movables();
  if (!own)
    return;
  gs_lock(&own->lock);
  struct gs_movable *found = around(own, address, 1);
  if (found)
    found->fixed |= reason;
  gs_unlock(&own->lock);
  gs_movable_publish();
}

void gs_movable_place(uint64_t address, enum gs_where where, uint64_t host) {
  struct gs_movables *own = movables();
  gs_lock(&own->lock);
  struct gs_movable *found = exactly(own, address);
  if (found) {
    found->where = where;
    found->host = host;
  }
  gs_unlock(&own->lock);
}

void gs_movable_publish(void) {
  struct gs_movables *own = movables();
  struct gs_slot_device *slot = &gs_process->slot->device[0];
  uint64_t movable = 0, hosted = 0, clean = 0;
  if (!own)
    return;
  gs_lock(&own->lock);
  for (uint32_t i = 0; i < own->table.used; i++) {
    const struct gs_movable *each = at(own, i);
    movable += each->fixed || !each->proxy ? 0 : each->bytes;
    hosted += each->where == GS_ON_HOST ? each->bytes : 0;
    clean += each->where == GS_COPIED ? each->bytes : 0;
  }
  if (__atomic_load_n(&gs_passage()->state, __ATOMIC_SEQ_CST) != GS_WATCHED)
    clean = 0;
  __atomic_store_n(&slot->movable_bytes, movable, __ATOMIC_RELEASE);
  __atomic_store_n(&slot->hosted_bytes, hosted, __ATOMIC_RELEASE);
  __atomic_store_n(&slot->clean_bytes, clean, __ATOMIC_RELEASE);
  gs_unlock(&own->lock);
}

/* ---- memory at addresses ---- */

static CUmemAllocationProp properties(int ordinal) {
  int capable = 0;
  CUdevice device = gs_device_of(ordinal);
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
  /* memory of cuMemAlloc can be given to a network card, too */
  if (gs_real.cuDeviceGetAttribute(&capable, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, device) ==
          CUDA_SUCCESS &&
      capable)
    prop.allocFlags.gpuDirectRDMACapable = 1;
  return prop;
}

CUresult gs_movable_unmap(const struct gs_movable *movable) {
  return gs_real.cuMemUnmap(movable->address, movable->bytes);
}

CUresult gs_movable_map(const struct gs_movable *movable) {
  CUmemAllocationProp prop = properties(movable->ordinal);
  CUmemAccessDesc access = {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUresult result = CUDA_SUCCESS;
  uint64_t done = 0;
  while (done < movable->bytes && result == CUDA_SUCCESS) {
    uint64_t bytes = movable->bytes - done < PIECE ? movable->bytes - done : PIECE;
    CUmemGenericAllocationHandle handle;
    result = gs_real.cuMemCreate(&handle, bytes, &prop, 0);
    if (result != CUDA_SUCCESS)
      break;
    result = gs_real.cuMemMap(movable->address + done, bytes, 0, handle, 0);
    gs_real.cuMemRelease(handle); /* the mapping keeps the memory */
    if (result == CUDA_SUCCESS)
      done += bytes;
  }
  if (result == CUDA_SUCCESS)
    result = gs_real.cuMemSetAccess(movable->address, movable->bytes, &access, 1);
  if (result != CUDA_SUCCESS && done)
    gs_real.cuMemUnmap(movable->address, done);
  return result;
}

/* ---- making ---- */

bool gs_movable_wanted(uint64_t bytes) {
  const struct gs_movables *own = movables();
  return gs_passage() && bytes > GS_MOVABLE_ABOVE && !(own && __atomic_load_n(&own->refused, __ATOMIC_RELAXED));
}

static uint64_t step(void) {
  const struct gs_movables *own = movables();
  uint64_t known = own ? __atomic_load_n(&own->step, __ATOMIC_RELAXED) : 0;
  return known ? known : STEP;
}

uint64_t gs_movable_bytes(uint64_t asked) { return gs_round_up(asked, step()); }

/* Asks the driver, once. False: it cannot map memory. */
static bool find_step(struct gs_movables *own, int ordinal) {
  CUmemAllocationProp prop = properties(ordinal);
  size_t least = 0;
  int supported = 0;
  if (__atomic_load_n(&own->step, __ATOMIC_RELAXED))
    return true;
  if (gs_real.cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                                   prop.location.id) != CUDA_SUCCESS ||
      !supported || gs_real.cuMemGetAllocationGranularity(&least, &prop, 0 /* minimum */) != CUDA_SUCCESS) {
    __atomic_store_n(&own->refused, 1, __ATOMIC_RELAXED);
    return false;
  }
  __atomic_store_n(&own->step, gs_round_up(least, STEP), __ATOMIC_RELAXED);
  return true;
}

bool gs_movable_ready(int ordinal) {
  struct gs_movables *own = own_movables();
  return own && find_step(own, ordinal);
}

static CUresult back_addresses(struct gs_movables *own, struct gs_movable *made) {
  CUdeviceptr address = 0;
  CUresult result = gs_real.cuMemAddressReserve(&address, made->bytes, 0, 0, 0);
  if (result != CUDA_SUCCESS)
    return result;
  made->address = address;
  result = gs_movable_map(made);
  if (result == CUDA_SUCCESS) {
    gs_lock(&own->lock);
    if (!insert(own, made))
      result = CUDA_ERROR_OUT_OF_MEMORY;
    gs_unlock(&own->lock);
    if (result != CUDA_SUCCESS)
      gs_movable_unmap(made);
  }
  if (result != CUDA_SUCCESS)
    gs_real.cuMemAddressFree(address, made->bytes);
  return result;
}

CUresult gs_movable_make(int ordinal, CUcontext context, uint64_t asked, uint64_t *address) {
  struct gs_movables *own = movables();
  struct gs_movable made = {.bytes = gs_movable_bytes(asked),
                            .asked = asked,
                            .number = gs_next_call(),
                            .context = context,
                            .ordinal = ordinal,
                            .host = GS_NO_PLACE};
  CUresult result = gs_real.cuMemAlloc_v2(&made.proxy, 1);
  if (result != CUDA_SUCCESS)
    return result;
  result = back_addresses(own, &made);
  if (result != CUDA_SUCCESS) {
    gs_real.cuMemFree_v2(made.proxy);
    return result;
  }
  *address = made.address;
  gs_movable_publish();
  return CUDA_SUCCESS;
}

/* ---- ending ---- */

static bool take(uint64_t address, uint64_t number, struct gs_movable *out) {
  struct gs_movables *own = movables();
  gs_lock(&own->lock);
  struct gs_movable *found = exactly(own, address);
  bool ours = found && found->number == number;
  if (ours) {
    *out = *found;
    remove_at(own, found);
  }
  gs_unlock(&own->lock);
  return ours;
}

static void give_up(const struct gs_movable *movable) {
  if (movable->where != GS_ON_HOST)
    gs_movable_unmap(movable);
  gs_real.cuMemAddressFree(movable->address, movable->bytes);
}

void gs_movable_end(uint64_t address, uint64_t number) {
  struct gs_movable gone;
  if (!take(address, number, &gone))
    return;
  give_up(&gone);
  gs_movable_publish();
  gs_give_back(gone.ordinal, gone.bytes + GS_PROXY_BYTES);
}

void gs_movable_abandon(const struct gs_movable *movable) {
  struct gs_movable gone;
  if (take(movable->address, movable->number, &gone))
    give_up(&gone);
}

/* It stays in the table, without a proxy: its addresses are taken. */
static bool leaves(uint64_t address, uint64_t number, struct gs_movable *out) {
  struct gs_movables *own = movables();
  gs_lock(&own->lock);
  struct gs_movable *found = exactly(own, address);
  bool ours = found && found->number == number;
  if (ours) {
    found->proxy = 0;
    *out = *found;
  }
  gs_unlock(&own->lock);
  return ours;
}

void gs_movable_end_later(uint64_t address, uint64_t number, const CUstream *stream) {
  struct gs_movables *own = movables();
  struct later later = {.event = NULL};
  if (!leaves(address, number, &later.movable))
    return;
  gs_real.cuCtxGetCurrent(&later.context);
  if (stream && gs_real.cuEventCreate(&later.event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS &&
      gs_real.cuEventRecord(later.event, *stream) != CUDA_SUCCESS) {
    gs_real.cuEventDestroy_v2(later.event);
    later.event = NULL;
  }
  gs_lock(&own->lock);
  bool kept = extend(&own->later);
  if (kept)
    ((struct later *)own->later.record)[own->later.used++] = later;
  gs_unlock(&own->lock);
  gs_movable_publish();
  if (kept)
    gs_mover_call(gs_passage());
  /* else its addresses and its charge stay taken until the process ends */
}

/* Whether the work behind which it was freed is done. */
static bool done(const struct later *later) {
  if (later->event)
    return gs_real.cuEventQuery(later->event) != CUDA_ERROR_NOT_READY;
  if (!later->context)
    return true;
  if (gs_real.cuCtxPushCurrent_v2(later->context) != CUDA_SUCCESS)
    return true;
  CUcontext popped;
  CUresult result = gs_real.cuCtxSynchronize();
  gs_real.cuCtxPopCurrent_v2(&popped);
  return result != CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

static bool later_at(struct gs_movables *own, uint32_t index, struct later *out) {
  gs_lock(&own->lock);
  bool found = index < own->later.used;
  if (found)
    *out = ((struct later *)own->later.record)[index];
  gs_unlock(&own->lock);
  return found;
}

static bool drop_later(struct gs_movables *own, uint64_t number) {
  struct later *list = own->later.record;
  bool found = false;
  gs_lock(&own->lock);
  for (uint32_t i = 0; i < own->later.used && !found; i++)
    if (list[i].movable.number == number) {
      memmove(&list[i], &list[i + 1], (--own->later.used - i) * sizeof *list);
      found = true;
    }
  gs_unlock(&own->lock);
  return found;
}

static void end_later(struct gs_movables *own, const struct later *later, bool context_lives) {
  if (!drop_later(own, later->movable.number))
    return;
  if (later->event && context_lives)
    gs_real.cuEventDestroy_v2(later->event);
  gs_movable_end(later->movable.address, later->movable.number);
}

bool gs_movable_settle(void) {
  struct gs_movables *own = movables();
  struct later later;
  uint32_t left = 0;
  while (own && later_at(own, left, &later)) {
    if (done(&later))
      end_later(own, &later, true);
    else
      left++;
  }
  return left > 0;
}

static bool of_context(struct gs_movables *own, CUcontext context, struct gs_movable *out) {
  bool found = false;
  gs_lock(&own->lock);
  for (uint32_t i = 0; i < own->table.used && !found; i++)
    found = at(own, i)->context == context && copy_out(at(own, i), out);
  gs_unlock(&own->lock);
  return found;
}

static void inherit(struct gs_movables *own, CUcontext context, CUcontext heir) {
  gs_lock(&own->lock);
  for (uint32_t i = 0; i < own->table.used; i++)
    if (at(own, i)->context == context)
      at(own, i)->context = heir;
  gs_unlock(&own->lock);
}

void gs_movable_context_gone(CUcontext context, CUcontext heir) {
  struct gs_movables *own = movables();
  struct gs_movable gone;
  struct later later;
  if (!own)
    return;
  for (uint32_t i = 0; later_at(own, i, &later);) {
    if (later.context == context)
      end_later(own, &later, false);
    else
      i++;
  }
  if (heir) {
    inherit(own, context, heir);
    return;
  }
  while (of_context(own, context, &gone))
    if (take(gone.address, gone.number, &gone))
      give_up(&gone);
  gs_movable_publish();
}
