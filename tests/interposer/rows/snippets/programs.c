/* Programs, and memory that the driver allocates for them implicitly: charged at load, released at unload. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "rows.h"

extern const char rows_ptx[];

/* A file with the program. */
static const char *file(struct rows *r) {
  static char path[] = "/tmp/rows-XXXXXX";
  strcpy(path, "/tmp/rows-XXXXXX");
  int fd = mkstemp(path);
  size_t bytes = strlen(rows_ptx);
  expect(r, fd >= 0 && write(fd, rows_ptx, bytes) == (ssize_t)bytes, "no file could be written");
  close(fd);
  return path;
}

/* A module that was just loaded: it works, and is unloaded. */
static void module_works(struct rows *r, CUmodule module) {
  CUfunction function = NULL;
  meet(r, "allocated");
  need(r, cuModuleGetFunction(&function, module, "spin_ns"), "its function");
  need(r, cuModuleUnload(module), "unload it");
  meet(r, "freed");
}

void row_cuModuleLoad(struct rows *r) {
  CUmodule module = NULL;
  context(r);
  const char *path = file(r);
  if (done(r, start(r)->cuModuleLoad(&module, path)))
    module_works(r, module);
  unlink(path);
}

void row_cuModuleLoadDataEx(struct rows *r) {
  CUmodule module = NULL;
  context(r);
  if (done(r, start(r)->cuModuleLoadDataEx(&module, rows_ptx, 0, NULL, NULL)))
    module_works(r, module);
}

void row_cuModuleLoadFatBinary(struct rows *r) {
  CUmodule module = NULL;
  context(r);
  if (done(r, start(r)->cuModuleLoadFatBinary(&module, rows_ptx)))
    module_works(r, module);
}

/* ---- libraries ---- */

static CUlibrary library(struct rows *r) {
  CUlibrary loaded = NULL;
  context(r);
  need(r, cuLibraryLoadData(&loaded, rows_ptx, NULL, NULL, 0, NULL, NULL, 0), "a library");
  return loaded;
}

static void library_works(struct rows *r, CUlibrary loaded) {
  CUmodule module = NULL;
  need(r, cuLibraryGetModule(&module, loaded), "its module");
  meet(r, "allocated");
  need(r, cuLibraryUnload(loaded), "unload it");
  meet(r, "freed");
}

void row_cuLibraryLoadData(struct rows *r) {
  CUlibrary loaded = NULL;
  context(r);
  if (done(r, start(r)->cuLibraryLoadData(&loaded, rows_ptx, NULL, NULL, 0, NULL, NULL, 0)))
    library_works(r, loaded);
}

void row_cuLibraryLoadFromFile(struct rows *r) {
  CUlibrary loaded = NULL;
  context(r);
  const char *path = file(r);
  if (done(r, start(r)->cuLibraryLoadFromFile(&loaded, path, NULL, NULL, 0, NULL, NULL, 0)))
    library_works(r, loaded);
  unlink(path);
}

void row_cuLibraryGetModule(struct rows *r) {
  CUlibrary loaded = library(r);
  CUmodule module = NULL;
  CUfunction function = NULL;
  done(r, start(r)->cuLibraryGetModule(&module, loaded));
  meet(r, "allocated");
  need(r, cuModuleGetFunction(&function, module, "spin_ns"), "its function");
  need(r, cuLibraryUnload(loaded), "unload it");
  meet(r, "freed");
}

void row_cuLibraryGetGlobal(struct rows *r) {
  static const char text[] =
      ".version 7.0\n.target sm_52\n.address_size 64\n.visible .global .align 4 .b8 table[1000];\n";
  CUlibrary loaded = NULL;
  CUdeviceptr at = 0;
  size_t bytes = 0;
  context(r);
  need(r, cuLibraryLoadData(&loaded, text, NULL, NULL, 0, NULL, NULL, 0), "a library");
  done(r, start(r)->cuLibraryGetGlobal(&at, &bytes, loaded, "table"));
  expect(r, at != 0 && bytes == 1000, "another variable");
  meet(r, "allocated");
  need(r, cuLibraryUnload(loaded), "unload it");
  meet(r, "freed");
}

void row_cuLibraryGetKernel(struct rows *r) {
  CUlibrary loaded = library(r);
  CUkernel kernel = NULL;
  CUfunction function = NULL;
  done(r, start(r)->cuLibraryGetKernel(&kernel, loaded, "spin_ns"));
  need(r, cuKernelGetFunction(&function, kernel), "its function here");
  meet(r, "allocated");
  need(r, cuLibraryUnload(loaded), "unload it");
  meet(r, "freed");
}

void row_cuLibraryEnumerateKernels(struct rows *r) {
  CUlibrary loaded = library(r);
  CUkernel kernel = NULL;
  CUfunction function = NULL;
  done(r, start(r)->cuLibraryEnumerateKernels(&kernel, 1, loaded));
  need(r, cuKernelGetFunction(&function, kernel), "its function here");
  meet(r, "allocated");
  need(r, cuLibraryUnload(loaded), "unload it");
  meet(r, "freed");
}

void row_cuKernelGetFunction(struct rows *r) {
  CUlibrary loaded = library(r);
  CUkernel kernel = NULL;
  CUfunction function = NULL;
  need(r, cuLibraryGetKernel(&kernel, loaded, "spin_ns"), "the kernel");
  done(r, start(r)->cuKernelGetFunction(&function, kernel));
  expect(r, function != NULL, "no function");
  meet(r, "allocated");
  need(r, cuLibraryUnload(loaded), "unload it");
  meet(r, "freed");
}

void row_cuCtxSetLimit(struct rows *r) {
  size_t value = 0;
  context(r);
  done(r, start(r)->cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 64 << 20));
  meet(r, "allocated");
  need(r, cuCtxGetLimit(&value, CU_LIMIT_MALLOC_HEAP_SIZE), "the limit");
  expect(r, value == 64 << 20, "another limit");
  need(r, cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 8 << 20), "back");
  meet(r, "freed");
}

/* ---- functions of modules, which the interposer examines when a program looks them up ---- */

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
