/* What the driver takes of a context's device memory by itself, reserved before the call that makes it so:
 *
 *   stack   local memory: for all threads the device can hold at once, as much as the hungriest kernel so far needs. It grows at
 *           that kernel's first launch (or when its graph is made), or by cuCtxSetLimit, and stays until the context ends.
 *   fifo, heap  the buffers of printf and of malloc in kernels, sized by cuCtxSetLimit.
 *   code    programs, see code.c and libraries.c.
 *
 * All come in pieces of 2 MiB. What a new context has of them is in limits->context_bytes, so only what exceeds that is
 * charged. Each is an entry of the books: bytes charged, link what the driver has taken for sure, count calls under way
 * that may make it more, flags what the context began with (stack: bytes per thread; fifo and heap: pieces). */
#include "interposer/memory/books.h"
#include "interposer/time/collectives.h"
#include "interposer/process/device.h"
#include "interposer/hooks/launch.h"
#include "interposer/hooks/limit.h"
#include "interposer/memory/implicit.h"

enum {
  CHUNK = 2097152,
  STACK_ROUND = 16,   /* a warp's local memory is a multiple of 512 bytes */
  STACK_MAX = 524288, /* of one thread, on every device */
  SM_COUNT = 16,      /* CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT */
  SM_THREADS = 39,    /* CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR */
  LOCAL_BYTES = 3     /* CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES */
};

static uint64_t pieces(uint64_t bytes) { return bytes / CHUNK + (bytes % CHUNK != 0); }

static uint64_t resident_threads(int ordinal) {
  uint64_t *known = &gs_process->resident_threads[ordinal], threads = __atomic_load_n(known, __ATOMIC_RELAXED);
  int count = 0, each = 0;
  if (threads)
    return threads;
  CUdevice device = gs_device_of(ordinal);
  if (gs_real.cuDeviceGetAttribute(&count, SM_COUNT, device) != CUDA_SUCCESS ||
      gs_real.cuDeviceGetAttribute(&each, SM_THREADS, device) != CUDA_SUCCESS || count <= 0 || each <= 0)
    return 0;
  threads = (uint64_t)count * (uint64_t)each;
  __atomic_store_n(known, threads, __ATOMIC_RELAXED);
  return threads;
}

static uint64_t stack_bytes(int ordinal, uint64_t per_thread) {
  uint64_t each = (per_thread + STACK_ROUND - 1) / STACK_ROUND * STACK_ROUND;
  return pieces(each * resident_threads(ordinal)) * CHUNK;
}

static uint64_t key_of(CUcontext context, uint32_t what) { return (uintptr_t)context + what; }

/* ---- the entries ------------------------------------------------------------------------------------------------- */

/* What the context began with. It is current, and nothing was changed yet. */
static uint32_t beginning(uint32_t what) {
  size_t value = 0;
  if (what == GS_IMPLICIT_CODE || gs_real.cuCtxGetLimit(&value, (CUlimit)what) != CUDA_SUCCESS)
    return 0;
  uint64_t units = what == GS_IMPLICIT_STACK ? value : pieces(value);
  return units > UINT32_MAX ? UINT32_MAX : (uint32_t)units;
}

static bool make_entry(CUcontext context, int ordinal, uint32_t what) {
  gs_book_lock();
  bool there = gs_book_find(GS_BOOK_IMPLICIT, key_of(context, what)) != NULL;
  gs_book_unlock();
  if (there)
    return true;
  if (!gs_book_room(1))
    return false;
  struct gs_entry fresh = {.key = key_of(context, what),
                           .kind = GS_BOOK_IMPLICIT,
                           .ordinal = ordinal,
                           .flags = beginning(what),
                           .context = context};
  gs_book_lock();
  if (!gs_book_find(GS_BOOK_IMPLICIT, fresh.key))
    gs_book_add(&fresh);
  gs_book_unlock();
  return true;
}

/* Under implicit_lock: entries change nowhere else, but for leaving with their context. */
static bool read_entry(CUcontext context, uint32_t what, struct gs_entry *out) {
  gs_book_lock();
  struct gs_entry *entry = gs_book_find(GS_BOOK_IMPLICIT, key_of(context, what));
  if (entry)
    *out = *entry;
  gs_book_unlock();
  return entry != NULL;
}

static bool write_entry(const struct gs_entry *changed) {
  gs_book_lock();
  struct gs_entry *entry = gs_book_find(GS_BOOK_IMPLICIT, changed->key);
  if (entry)
    *entry = *changed;
  gs_book_unlock();
  return entry != NULL;
}

/* Bytes above the beginning, for a value as the driver's limit says it. */
static uint64_t bytes_above(const struct gs_entry *entry, uint32_t what, uint64_t value) {
  uint64_t from, to;
  if (what == GS_IMPLICIT_STACK) {
    from = stack_bytes(entry->ordinal, entry->flags);
    to = stack_bytes(entry->ordinal, value < STACK_MAX ? value : STACK_MAX);
  } else {
    from = (uint64_t)entry->flags * CHUNK;
    to = pieces(value) * CHUNK;
  }
  return to > from ? to - from : 0;
}

/* Reserves what the value may make the driver take. first: the context and what; gets the rest. */
static CUresult begin(struct gs_first *first, int ordinal, uint64_t value) {
  struct gs_entry entry;
  CUresult result = CUDA_SUCCESS;
  if (!make_entry(first->context, ordinal, first->what))
    return CUDA_ERROR_OUT_OF_MEMORY;
  gs_lock(&gs_process->implicit_lock);
  if (read_entry(first->context, first->what, &entry)) {
    first->bytes = bytes_above(&entry, first->what, value);
    first->grows = first->what != GS_IMPLICIT_STACK || first->bytes > entry.link;
    if (first->grows && first->bytes > entry.bytes && gs_reserve(ordinal, first->bytes - entry.bytes) < 0) {
      first->grows = false;
      result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (first->grows) {
      entry.bytes = first->bytes > entry.bytes ? first->bytes : entry.bytes;
      entry.count++;
      write_entry(&entry);
    }
  }
  gs_unlock(&gs_process->implicit_lock);
  return result;
}

void gs_implicit_end(const struct gs_first *first, bool taken) {
  struct gs_entry entry;
  uint64_t rest = 0;
  if (!first->grows)
    return;
  gs_lock(&gs_process->implicit_lock);
  if (read_entry(first->context, first->what, &entry)) {
    bool keeps = first->what == GS_IMPLICIT_STACK && first->bytes < entry.link;
    if (taken && !keeps)
      entry.link = first->bytes;
    if (entry.count > 0 && --entry.count == 0) {
      rest = entry.bytes - entry.link;
      entry.bytes = entry.link;
    }
    if (!write_entry(&entry))
      rest = 0; /* it went with its context */
  }
  gs_give_back(entry.ordinal, rest);
  gs_unlock(&gs_process->implicit_lock);
}

/* ---- code: as many pieces as the sum of all images needs; link is that sum --------------------------------------- */

CUresult gs_code_take(CUcontext context, int ordinal, uint64_t bytes) {
  struct gs_entry entry;
  CUresult result = CUDA_SUCCESS;
  if (!make_entry(context, ordinal, GS_IMPLICIT_CODE))
    return CUDA_ERROR_OUT_OF_MEMORY;
  gs_lock(&gs_process->implicit_lock);
  if (read_entry(context, GS_IMPLICIT_CODE, &entry)) {
    uint64_t want = pieces(entry.link + bytes) * CHUNK;
    if (want > entry.bytes && gs_reserve(ordinal, want - entry.bytes) < 0) {
      result = CUDA_ERROR_OUT_OF_MEMORY;
    } else {
      entry.link += bytes;
      entry.bytes = want;
      write_entry(&entry);
    }
  }
  gs_unlock(&gs_process->implicit_lock);
  return result;
}

void gs_code_give(CUcontext context, uint64_t bytes) {
  struct gs_entry entry;
  gs_lock(&gs_process->implicit_lock);
  if (read_entry(context, GS_IMPLICIT_CODE, &entry)) {
    uint64_t before = entry.bytes;
    entry.link -= bytes < entry.link ? bytes : entry.link;
    entry.bytes = pieces(entry.link) * CHUNK;
    if (write_entry(&entry))
      gs_give_back(entry.ordinal, before - entry.bytes);
  }
  gs_unlock(&gs_process->implicit_lock);
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

static bool is_default(CUstream stream) {
  return !stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

CUcontext gs_owner_current(void) {
  CUcontext context = NULL;
  return gs_real.cuCtxGetCurrent(&context) == CUDA_SUCCESS ? gs_context_owner(context) : NULL;
}

CUcontext gs_stream_owner(CUstream stream) {
  CUcontext context = NULL;
  struct gs_stream *known;
  if (is_default(stream))
    return gs_owner_current();
  known = gs_stream_known(stream);
  if (known)
    return gs_context_owner(known->context->handle);
  return gs_real.cuStreamGetCtx(stream, &context) == CUDA_SUCCESS ? gs_context_owner(context) : NULL;
}

/* Never 0. A process with one context needs not be asked which one it is. */
static inline uint64_t hash_of(CUfunction function, CUstream stream) {
  uint64_t generation = __atomic_load_n(&gs_process->kernel_generation, __ATOMIC_RELAXED);
  uint64_t hash = ((uintptr_t)function ^ generation << 48) * 0x9e3779b97f4a7c15u; /* 2^64 over the golden ratio */
  if (!GS_LIKELY(__atomic_load_n(&gs_process->contexts, __ATOMIC_RELAXED) == 1))
    hash = (hash ^ (uintptr_t)gs_stream_owner(stream)) * 0xd6e8feb86659fd93u; /* an odd number with bits everywhere */
  return (hash ^ hash >> 32) | 1;
}

static inline uint64_t *place_of(uint64_t hash) { return &gs_process->kernels[hash >> 20 & (GS_KNOWN_KERNELS - 1)]; }

void gs_kernels_forget(void) {
  __atomic_fetch_add(&gs_process->kernel_generation, 1, __ATOMIC_RELAXED);
  if (gs_time())
    gs_repeat_end(gs_time());
}

/* Local memory of one thread of a kernel; 0 where the driver does not say. The context is current. */
static uint64_t local_bytes(CUfunction function, bool of_library, int ordinal) {
  int bytes = 0;
  CUresult result = of_library
                        ? gs_real.cuKernelGetAttribute(&bytes, LOCAL_BYTES, (CUkernel)function, gs_device_of(ordinal))
                        : gs_real.cuFuncGetAttribute(&bytes, LOCAL_BYTES, function);
  return result == CUDA_SUCCESS && bytes > 0 ? (uint64_t)bytes : 0;
}

CUresult gs_kernel_need(CUfunction function, CUcontext context, int *ordinal, uint64_t *stack) {
  CUcontext popped, current = gs_owner_current();
  bool of_library = false;
  *stack = 0;
  *ordinal = context ? gs_context_device(context) : GS_NO_DEVICE;
  if (!function || *ordinal == GS_NO_DEVICE)
    return CUDA_SUCCESS; /* nothing to charge, or the driver's to refuse */
  if (context != current && gs_real.cuCtxPushCurrent_v2(context) != CUDA_SUCCESS)
    return CUDA_SUCCESS;
  /* asking may load the kernel, as its launch would */
  int previous = gs_time() ? gs_relax() : -1;
  CUresult result = gs_kernel_placed(function, context, *ordinal, &of_library);
  if (result == CUDA_SUCCESS)
    *stack = local_bytes(function, of_library, *ordinal);
  if (gs_time())
    gs_unrelax(previous);
  if (context != current)
    gs_real.cuCtxPopCurrent_v2(&popped);
  return result;
}

/* Made current where it is not: `beginning` asks the current one. */
CUresult gs_stack_begin(struct gs_first *first, CUcontext context, int ordinal, uint64_t stack) {
  CUcontext popped, current = gs_owner_current();
  first->context = context;
  first->what = GS_IMPLICIT_STACK;
  bool pushed = context != current && gs_real.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS;
  CUresult result = begin(first, ordinal, stack);
  if (pushed)
    gs_real.cuCtxPopCurrent_v2(&popped);
  return result;
}

/* A collective is never known by its own hash, so that each launch of it comes here, but by this one. */
static uint64_t collective_hash(uint64_t hash) {
  return hash * 0xd6e8feb86659fd93u | 1; /* an odd number with bits everywhere */
}

static inline bool known(uint64_t hash) { return GS_LIKELY(__atomic_load_n(place_of(hash), __ATOMIC_RELAXED) == hash); }

static CUresult look(struct gs_first *first, CUfunction function, CUstream stream, uint64_t hash) {
  int ordinal;
  uint64_t stack;
  *first = (struct gs_first){0};
  struct gs_time *time = gs_time();
  if (time && __atomic_load_n(&time->captures, __ATOMIC_ACQUIRE) > 0 && gs_stream_capturing(stream))
    return CUDA_SUCCESS; /* it runs when its graph does */
  bool collective = gs_collective(function);
  CUresult result = CUDA_SUCCESS;
  first->kernel = hash = collective ? collective_hash(hash) : hash;
  if (!collective || !known(hash)) {
    CUcontext context = gs_stream_owner(stream);
    result = gs_kernel_need(function, context, &ordinal, &stack);
    if (result == CUDA_SUCCESS && stack > 0)
      result = gs_stack_begin(first, context, ordinal, stack);
  }
  if (result == CUDA_SUCCESS && collective) {
    first->collective = true;
    first->stream = stream;
    first->ordinal = gs_collective_device(stream);
    gs_collective_begin(first->ordinal, 1);
  }
  return result;
}

CUresult gs_kernel_look(struct gs_first *first, CUfunction function, CUstream stream) {
  uint64_t hash = hash_of(function, stream);
  first->kernel = 0;
  return known(hash) ? CUDA_SUCCESS : look(first, function, stream, hash);
}

void gs_kernel_looked(const struct gs_first *first, CUresult result) {
  if (GS_LIKELY(first->kernel == 0))
    return;
  gs_implicit_end(first, result == CUDA_SUCCESS);
  if (first->collective) {
    gs_repeat_of(first->stream)->left = 0; /* each is counted by itself */
    gs_collective_end(first->ordinal, 1, result);
  }
  if (result == CUDA_SUCCESS)
    __atomic_store_n(place_of(first->kernel), first->kernel, __ATOMIC_RELAXED);
}

/* Out of line: what it needs saved, a repeated launch would pay for. */
static __attribute__((noinline)) CUresult before_booked(struct gs_around_kernel *around, CUfunction function,
                                                        uint64_t key, CUstream stream) {
  CUresult result = CUDA_SUCCESS;
  around->submission.stream = NULL;
  around->first.kernel = 0;
  if (!gs_enter(&result))
    return result;
  uint64_t hash = hash_of(function, stream);
  if (!known(hash) && (result = look(&around->first, function, stream, hash)) != CUDA_SUCCESS)
    return result;
  return gs_submit(&around->submission, key, stream);
}

CUresult gs_before_kernel(struct gs_around_kernel *around, CUfunction function, uint64_t key, CUstream stream) {
  around->repeat = gs_repeat_launch(key, stream);
  return GS_LIKELY(around->repeat) ? CUDA_SUCCESS : before_booked(around, function, key, stream);
}

CUresult gs_after_kernel(struct gs_around_kernel *around, CUresult result) {
  if (GS_LIKELY(around->repeat)) {
    gs_repeated(around->repeat, result);
    return result;
  }
  gs_submitted(&around->submission, result);
  if (!GS_LIKELY(around->first.kernel == 0))
    gs_kernel_looked(&around->first, result);
  return result;
}

/* ---- cuCtxSetLimit ----------------------------------------------------------------------------------------------- */

CUresult gs_before_limit(struct gs_around_limit *around, CUlimit limit, size_t value) {
  CUresult result = CUDA_SUCCESS;
  around->first = (struct gs_first){0};
  if (!gs_enter(&result))
    return result;
  int ordinal = gs_current_device();
  CUcontext context = gs_owner_current();
  bool sizes = limit == CU_LIMIT_STACK_SIZE || limit == CU_LIMIT_PRINTF_FIFO_SIZE || limit == CU_LIMIT_MALLOC_HEAP_SIZE;
  if (!sizes || ordinal == GS_NO_DEVICE || !context || (limit == CU_LIMIT_STACK_SIZE && value > STACK_MAX))
    return CUDA_SUCCESS; /* nothing to charge, or the driver's to refuse */
  around->first.context = context;
  around->first.what = (uint32_t)limit;
  return begin(&around->first, ordinal, value);
}

CUresult gs_after_limit(struct gs_around_limit *around, CUresult result) {
  gs_implicit_end(&around->first, result == CUDA_SUCCESS);
  return result;
}
