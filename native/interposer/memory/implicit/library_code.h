/* Memory that libraries take in the contexts in which they are used. */
#ifndef GPUSHARE_MEMORY_LIBRARY_CODE_H
#define GPUSHARE_MEMORY_LIBRARY_CODE_H

#include "interposer/process/process.h"

enum { GS_LIBRARY_ALL = 0 /* as `part`: all code of the library */ };

/* Which parts a use has loaded into a context that did not have them before. */
struct gs_brought {
  bool variables, code;
  uint64_t number; /* the library's */
};
/* A part (a kernel; GS_LIBRARY_ALL; or the library itself, meaning only its variables) is about to be used in context,
 * and the library's variables with it: reserves what was not there yet. */
CUresult gs_library_place(uint64_t library, uint64_t part, CUcontext context, int ordinal, struct gs_brought *brought);
/* The part was not used after all: gives back what gs_library_place reserved. */
void gs_library_undo(uint64_t part, CUcontext context, struct gs_brought brought);
/* The library of this number was unloaded: gives back what it took. */
void gs_library_gone(uint64_t number);

/* The driver returned this kernel of the library. */
void gs_library_kernel(CUkernel kernel, CUlibrary library);
/* The library to which a kernel belongs; 0: none. */
uint64_t gs_library_of(uint64_t kernel);
/* The kernel is about to be used in context: if it belongs to a library, that library's memory there is reserved. */
CUresult gs_kernel_placed(CUfunction kernel, CUcontext context, int ordinal, bool *of_library);
/* The context of the function's module; NULL: the function is a library's kernel, which has no context, or not
 * known. */
CUcontext gs_function_context(CUfunction function);

#endif
