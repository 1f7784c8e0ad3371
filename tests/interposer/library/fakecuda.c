/* A driver of a version other than the table's: VERSION is the CUDA version it reports. Its cuGetProcAddress knows a
 * few base names. Each answer is a distinct function that returns the ABI version it represents. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifndef VERSION
#define VERSION 12020
#endif

#define ABI(name, version) \
  int name(void); \
  int name(void) { return version; }
/* clang-format off */
ABI(ctx_2000, 2000) ABI(ctx_3020, 3020) ABI(ctx_11040, 11040) ABI(ctx_12050, 12050)
ABI(alloc_2000, 2000) ABI(alloc_3020, 3020) ABI(alloc_14000, 14000)
ABI(memcpy_7000, 7000) ABI(new_14050, 14050) ABI(attach_2000, 2000)
ABI(copy_13020, 13020) ABI(host_10000, 10000) ABI(host_13010, 13010)
ABI(launch_14050, 14050) ABI(query_14050, 14050) ABI(hidden_11000, 11000) ABI(graphics_3020, 3020)
    /* clang-format on */

    static const struct {
  const char *base;
  int version;
  uint64_t flags;
  int (*function)(void);
} known[] = {{"cuCtxCreate", 2000, 0, ctx_2000},         {"cuCtxCreate", 3020, 0, ctx_3020},
             {"cuCtxCreate", 11040, 0, ctx_11040},       {"cuCtxCreate", 12050, 0, ctx_12050},
             {"cuMemAlloc", 2000, 0, alloc_2000},        {"cuMemAlloc", 3020, 0, alloc_3020},
             {"cuMemAlloc", 14000, 0, alloc_14000},      {"cuCtxAttach", 2000, 0, attach_2000},
             {"cuMemcpyHtoD", 7000, 2, memcpy_7000},     {"cuNewAllocAsync", 14050, 0, new_14050},
             {"cuLaunchNew", 14050, 0, launch_14050},    {"cuNewQuery", 14050, 0, query_14050},
             {"cuHiddenCreate", 11000, 0, hidden_11000}, {"cuMemcpyWithAttributesAsync", 13020, 0, copy_13020},
             {"cuLaunchHostFunc", 10000, 0, host_10000}, {"cuLaunchHostFunc", 13010, 0, host_13010},
             {"cuGLCtxCreate", 3020, 0, graphics_3020}};

int cuInit(unsigned flags);
int cuInit(unsigned flags) {
  (void)flags;
  return 0;
}
int cuDriverGetVersion(int *version);
int cuDriverGetVersion(int *version) {
  *version = VERSION;
  return 0;
}

int cuGetProcAddress_v2(const char *base, void **function, int version, uint64_t flags, int *status);
int cuGetProcAddress_v2(const char *base, void **function, int version, uint64_t flags, int *status) {
  int best = 0;
  (void)status;
  *function = NULL;
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (strcmp(known[i].base, base) == 0 && known[i].version <= version && known[i].version <= VERSION &&
        known[i].version > best && (known[i].flags == 0 || flags == known[i].flags)) {
      best = known[i].version;
      *function = (void *)known[i].function;
    }
  return *function ? 0 : 500;
}
