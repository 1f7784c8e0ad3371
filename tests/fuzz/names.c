/* cuGetProcAddress with random names, versions and flags: the pointer is the driver's, or the handler of exactly that
 * name. */
#include "fuzz.h"
#include "interposer/hooks/lookup.h"

CUresult cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags);
CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags, int *status);

static const char *handler_name(const void *function) {
  for (unsigned i = 0; i < gs_nhooks; i++)
    if (gs_hooks[i].handler == function)
      return gs_hooks[i].symbol;
  return NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct bytes in = {data, size};
  uint8_t shape = take8(&in);
  int version = (int)take32(&in), status;
  if (shape & 1)
    version = 2000 + version % 12000;
  cuuint64_t flags = shape & 2 ? take64(&in) : take8(&in) % 3;
  char name[128] = "";
  if (shape & 4) { /* a known name, or a prefix of one */
    snprintf(name, sizeof name, "%s", gs_known[take32(&in) % gs_nknown].base);
    name[take8(&in) % sizeof name] = 0;
  }
  size_t have = strlen(name), room = sizeof name - 1 - have, more = in.left < room ? in.left : room;
  memcpy(name + have, in.at, more);
  name[have + more] = 0;
  void *function = NULL, *older = NULL;
  CUresult result = gs_real.cuGetProcAddress_v2(name, &older, version, flags, &status);
  MUST(cuGetProcAddress_v2(name, &function, version, flags, &status) == result);
  const char *handler = result == CUDA_SUCCESS ? handler_name(function) : NULL;
  MUST(result != CUDA_SUCCESS || function == older || handler);
  if (handler)
    MUST(strncmp(handler, name, strlen(name)) == 0);
  (void)cuGetProcAddress(name, &function, version, flags);
  return 0;
}
