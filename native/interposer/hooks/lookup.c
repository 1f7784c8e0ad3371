/* cuGetProcAddress: the program asks for a base name, a CUDA version and a kind of default stream, and gets one exact
 * ABI. The driver answers first; then the pointer is replaced by the handler of exactly that ABI. */
#include "interposer/hooks/lookup.h"

#include "hooks.h"
#include "interposer/os/guest.h"

#include <string.h>

/* The version of base that the driver chooses: the newest one not above the version asked for. 0: there is none of that
 * kind. */
static int chosen_version(const char *base, int version, int per_thread) {
  unsigned low = 0, high = gs_nknown;
  while (low < high) {
    unsigned middle = (low + high) / 2;
    if (strcmp(gs_known[middle].base, base) < 0)
      low = middle + 1;
    else
      high = middle;
  }
  int best = 0;
  for (; low < gs_nknown && strcmp(gs_known[low].base, base) == 0; low++)
    if (gs_known[low].per_thread == per_thread && gs_known[low].version <= version && gs_known[low].version > best)
      best = gs_known[low].version;
  return best;
}

static void *handler_of(const char *base, int version, bool per_thread) {
  int variant = per_thread;
  int best = chosen_version(base, version, variant);
  if (best == 0 && per_thread) {
    variant = 0; /* a function without a stream parameter */
    best = chosen_version(base, version, variant);
  }
  for (unsigned i = 0; best && i < gs_nhooks; i++)
    if (gs_hooks[i].version == best && gs_hooks[i].per_thread == variant && strcmp(gs_hooks[i].base, base) == 0)
      return gs_hooks[i].handler;
  /* not a base name; if a driver returns an exported name all the same, it means exactly that symbol */
  for (unsigned i = 0; !best && i < gs_nhooks; i++)
    if (strcmp(gs_hooks[i].symbol, base) == 0)
      return gs_hooks[i].handler;
  return NULL;
}

static bool in_table(const char *base) {
  for (unsigned i = 0; i < gs_nknown; i++)
    if (strcmp(gs_known[i].base, base) == 0)
      return true;
  for (unsigned i = 0; i < gs_nnames; i++)
    if (strcmp(gs_names[i], base) == 0)
      return true;
  return false;
}

/* Functions newer than the table are passed through when they are requested here, as every CUDA runtime does; dlsym
 * does not find them. If the name suggests that the function allocates memory or submits work, a line is printed to
 * make the gap visible. One line per process: a runtime requests all functions at startup, whether the program uses
 * them or not. */
static void mention_unknown(const char *base, int version) {
  static uint32_t mentioned;
  static const char *const WORTH[] = {"Alloc", "Create", "Import", "Launch", "Async", "Memcpy", "Memset", "Prefetch"};
  for (unsigned i = 0; i < sizeof WORTH / sizeof *WORTH; i++)
    if (strstr(base, WORTH[i]) && !__atomic_exchange_n(&mentioned, 1, __ATOMIC_RELAXED))
      gs_say(
          "functions such as %s (CUDA %d) are unknown to this gpushare (CUDA %d): they are neither charged nor gated",
          base, version, gs_table_version);
}

static int driver_version(void) {
  int version = 0;
  return gs_real.cuDriverGetVersion(&version) == CUDA_SUCCESS ? version : gs_table_version;
}

static CUresult ask_driver(const char *symbol, void **function, int version, cuuint64_t flags) {
  int status;
  if (gs_real_has(GS_INDEX_cuGetProcAddress_v2))
    return gs_real.cuGetProcAddress_v2(symbol, function, version, flags, &status);
  return gs_real.cuGetProcAddress(symbol, function, version, flags);
}

/* Whether the answer is the ABI that the table means. If the requested version is newer than the table, it is, provided
 * that the driver returns the same function for the newest version in the table. */
static bool known_abi(const char *symbol, const void *answer, int effective, cuuint64_t flags) {
  void *known = NULL;
  return effective <= gs_table_version ||
         (ask_driver(symbol, &known, gs_table_version, flags) == CUDA_SUCCESS && known == answer);
}

/* The driver's function, or the handler for it. */
static void *exchange(const char *symbol, void *answer, int version, cuuint64_t flags) {
  int newest = driver_version();
  int effective = version < newest ? version : newest;
  int in_both = effective < gs_table_version ? effective : gs_table_version;
  if (known_abi(symbol, answer, effective, flags)) {
    void *handler = handler_of(symbol, in_both, (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0);
    if (handler)
      return handler;
    if (in_table(symbol))
      return answer;
  }
  mention_unknown(symbol, effective);
  return answer;
}

CUresult gs_cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags) {
  CUresult result = gs_real.cuGetProcAddress(symbol, pfn, cudaVersion, flags);
  if (result == CUDA_SUCCESS && symbol && pfn && *pfn)
    *pfn = exchange(symbol, *pfn, cudaVersion, flags);
  return result;
}

CUresult gs_cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                                CUdriverProcAddressQueryResult *symbolStatus) {
  CUresult result = gs_real.cuGetProcAddress_v2(symbol, pfn, cudaVersion, flags, symbolStatus);
  if (result == CUDA_SUCCESS && symbol && pfn && *pfn)
    *pfn = exchange(symbol, *pfn, cudaVersion, flags);
  return result;
}
