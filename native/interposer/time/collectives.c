/* Collectives are recognised by the name of their kernels, when a program looks it up: a launch costs nothing more than
 * before, and one of a collective takes the way of a kernel that is launched for the first time (implicit.c).
 *
 * They are counted before they are submitted: what is on the device is in `collectives`, whenever the arbiter looks. A
 * launch that is under way when the lease goes is counted and then looks at the lease again, the arbiter takes the
 * lease and then looks at the count: either it sees the launch and gives every rank a cut that lets it get there, or
 * the launch sees the revoke and takes its count back. Under a cut a place is taken by compare and exchange: exactly as
 * many go as the cut lets. */
#include "interposer/time/collectives.h"

#include <string.h>

#include "interposer/memory/books.h"
#include "interposer/process/device.h"
#include "interposer/time/timing.h"

/* Of the devices, by ordinal, which of them this thread is about to submit a collective to that is counted. */
GS_TLS uint32_t claimed;

/* ---- names ------------------------------------------------------------------------------------------------------- */

/* NCCL's kernels, also as C++ names them. */
static bool names_collective(const char *name) {
  static const char prefix[] = "ncclDevKernel";
  if (name && name[0] == '_' && name[1] == 'Z')
    for (name += 2; *name >= '0' && *name <= '9'; name++) {
    }
  return name && strncmp(name, prefix, sizeof prefix - 1) == 0;
}

static void mark(const void *function, bool is, const void *program, CUcontext context) {
  if (!function || (!is && !gs_collectives_known()) || (is && !gs_book_room(1)))
    return;
  gs_book_lock();
  struct gs_entry *known = gs_book_find(GS_BOOK_COLLECTIVE, (uintptr_t)function);
  if (known)
    gs_book_remove(known); /* the handle may have been another's */
  if (is)
    gs_book_add(&(struct gs_entry){.key = (uintptr_t)function,
                                   .kind = GS_BOOK_COLLECTIVE,
                                   .ordinal = GS_NO_DEVICE,
                                   .link = (uintptr_t)program,
                                   .context = context});
  gs_book_unlock();
  if (is)
    __atomic_add_fetch(&gs_process->collectives, 1, __ATOMIC_RELEASE);
}

void gs_collective_found(const void *function, const char *name, const void *program, CUcontext context) {
  mark(function, names_collective(name), program, context);
}

void gs_collective_same(const void *function, const void *kernel, const void *program) {
  if (function != kernel)
    mark(function, gs_collective(kernel), program, NULL);
}

void gs_collectives_gone(const void *program) {
  if (gs_collectives_known())
    gs_book_drop_link(GS_BOOK_COLLECTIVE, (uintptr_t)program);
}

bool gs_collective(const void *function) {
  if (!gs_collectives_known())
    return false;
  gs_book_lock();
  bool is = gs_book_find(GS_BOOK_COLLECTIVE, (uintptr_t)function) != NULL;
  gs_book_unlock();
  return is;
}

/* ---- look-ups of modules; those of libraries are in libraries.c -------------------------------------------------- */

static CUcontext context_of(CUmodule module) {
  gs_book_lock();
  struct gs_entry *known = gs_book_find(GS_BOOK_MODULE, (uintptr_t)module);
  CUcontext context = known ? known->context : NULL;
  gs_book_unlock();
  return context;
}

CUresult gs_cuModuleGetFunction(CUfunction *hfunc, CUmodule hmod, const char *name) {
  CUresult result;
  bool joined = gs_enter(&result);
  if (!joined && result != CUDA_SUCCESS)
    return result;
  result = gs_real.cuModuleGetFunction(hfunc, hmod, name);
  if (joined && result == CUDA_SUCCESS)
    gs_collective_found(*hfunc, name, hmod, context_of(hmod));
  return result;
}

CUresult gs_cuModuleEnumerateFunctions(CUfunction *functions, unsigned int numFunctions, CUmodule mod) {
  CUresult result;
  const char *name;
  unsigned int count = 0;
  bool joined = gs_enter(&result);
  if (!joined && result != CUDA_SUCCESS)
    return result;
  result = gs_real.cuModuleEnumerateFunctions(functions, numFunctions, mod);
  if (!joined || result != CUDA_SUCCESS || gs_real.cuModuleGetFunctionCount(&count, mod) != CUDA_SUCCESS)
    return result;
  for (unsigned int i = 0; i < count && i < numFunctions; i++)
    if (gs_real.cuFuncGetName(&name, functions[i]) == CUDA_SUCCESS)
      gs_collective_found(functions[i], name, mod, context_of(mod));
  return result;
}

/* ---- counting ---------------------------------------------------------------------------------------------------- */

static bool local(const struct gs_time_device *device) { return __atomic_load_n(&device->local, __ATOMIC_ACQUIRE); }
static bool held(const struct gs_time_device *device) {
  return __atomic_load_n(&device->limits->lease, __ATOMIC_SEQ_CST) & GS_LEASE_HELD;
}

/* Counts them if they may go. */
static bool claim(struct gs_time_device *device, uint32_t count) {
  uint64_t *counted = &device->slot->collectives, before = __atomic_load_n(counted, __ATOMIC_SEQ_CST);
  bool leased = held(device) || local(device);
  if (!leased) {
    if (before >= __atomic_load_n(&device->slot->cut, __ATOMIC_SEQ_CST))
      return false;
    gs_undrain(device);
  }
  if (!__atomic_compare_exchange_n(counted, &before, before + count, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
    return false;
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  if (!leased || held(device) || local(device) || before < __atomic_load_n(&device->slot->cut, __ATOMIC_SEQ_CST))
    return true;
  __atomic_sub_fetch(counted, count, __ATOMIC_SEQ_CST); /* revoked in between */
  return false;
}

void gs_collective_begin(int ordinal, uint32_t count) {
  struct gs_time *time = gs_time();
  if (ordinal < 0 || ordinal >= (int)gs_process->ndevices || count == 0)
    return;
  if (!time) {
    gs_time_start(ordinal);
    if (!(time = gs_time()))
      return;
  }
  struct gs_time_device *device = &time->device[ordinal];
  /* not drained, from here until it is in the meter's books */
  __atomic_add_fetch(&device->claims, 1, __ATOMIC_SEQ_CST);
  while (!claim(device, count)) {
    __atomic_sub_fetch(&device->claims, 1, __ATOMIC_SEQ_CST);
    gs_gate_wait(device, NULL);
    __atomic_add_fetch(&device->claims, 1, __ATOMIC_SEQ_CST);
  }
  claimed |= 1u << ordinal;
}

void gs_collective_end(int ordinal, uint32_t count, CUresult result) {
  struct gs_time *time = gs_time();
  if (ordinal < 0 || !(claimed >> ordinal & 1))
    return;
  claimed &= ~(1u << ordinal);
  if (!time)
    return;
  struct gs_time_device *device = &time->device[ordinal];
  if (result != CUDA_SUCCESS)
    __atomic_sub_fetch(&device->slot->collectives, count, __ATOMIC_SEQ_CST);
  __atomic_sub_fetch(&device->claims, 1, __ATOMIC_SEQ_CST);
}

int gs_collective_device(CUstream stream) {
  const struct gs_stream *known = gs_stream_of(stream);
  return known ? known->device->ordinal : gs_stream_device(stream);
}

bool gs_claimed(const struct gs_time_device *device) { return claimed >> device->ordinal & 1; }
