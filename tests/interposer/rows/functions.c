/* Functions of modules, which the interposer examines when a program looks them up. */
#include "rows.h"

/* One kernel of a collective and one ordinary kernel. */
static CUmodule module(struct rows *r) {
  static const char text[] =
      ".version 7.0\n.target sm_52\n.address_size 64\n"
      ".visible .entry ncclDevKernel_SendRecv()\n{\n\tret;\n}\n.visible .entry other()\n{\n\tret;\n}\n";
  CUmodule loaded = NULL;
  context(r);
  need(r, cuModuleLoadData(&loaded, text), "a module");
  return loaded;
}

static void is_named(struct rows *r, CUfunction function, const char *wanted) {
  const char *name = NULL;
  need(r, cuFuncGetName(&name, function), "its name");
  expect(r, name && strcmp(name, wanted) == 0, "another function");
}

static void runs(struct rows *r, CUfunction function) {
  lease(r);
  need(r, cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream(r), NULL, NULL), "a launch of it");
  settle(r);
}

void row_cuModuleGetFunction(struct rows *r) {
  CUmodule loaded = module(r);
  CUfunction function = NULL;
  if (done(r, start(r)->cuModuleGetFunction(&function, loaded, "ncclDevKernel_SendRecv"))) {
    is_named(r, function, "ncclDevKernel_SendRecv");
    runs(r, function);
  }
  need(r, cuModuleUnload(loaded), "unload it");
}

void row_cuModuleEnumerateFunctions(struct rows *r) {
  CUmodule loaded = module(r);
  CUfunction functions[2] = {NULL};
  if (done(r, start(r)->cuModuleEnumerateFunctions(functions, 2, loaded))) {
    is_named(r, functions[0], "ncclDevKernel_SendRecv");
    is_named(r, functions[1], "other");
    for (int i = 0; i < 2; i++)
      runs(r, functions[i]);
  }
  need(r, cuModuleUnload(loaded), "unload it");
}
