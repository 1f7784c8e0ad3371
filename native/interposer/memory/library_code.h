/* What libraries take of the memory of the contexts that they are used in. */
#ifndef GPUSHARE_MEMORY_LIBRARY_CODE_H
#define GPUSHARE_MEMORY_LIBRARY_CODE_H

#include "interposer/process/process.h"

enum { GS_LIBRARY_ALL = 0 /* as a part: all code of the library */ };

/* Which parts a use has brought into a context that had them not. */
struct gs_brought {
  bool variables, code;
};
/* The part (a kernel, GS_LIBRARY_ALL, or the library itself, which stands for its variables alone) is about to be used
 * in context, and with it the library's variables: what was not there yet is reserved. */
CUresult gs_library_place(uint64_t library, uint64_t part, CUcontext context, int ordinal, struct gs_brought *brought);
/* It was not used after all. */
void gs_library_undo(uint64_t library, uint64_t part, CUcontext context, struct gs_brought brought);
/* It was unloaded: what it took is given back. */
void gs_library_gone(uint64_t library);

/* The driver gave this kernel of the library. */
void gs_library_kernel(CUkernel kernel, CUlibrary library);
/* The library that a kernel is of, 0: of none. */
uint64_t gs_library_of(uint64_t kernel);
/* The kernel is about to be used in context: the library it is of, if any, takes its memory there. */
CUresult gs_kernel_placed(CUfunction kernel, CUcontext context, int ordinal, bool *of_library);
/* The context of the module that the function is of; NULL: a library's kernel, which has none, or not known. */
CUcontext gs_function_context(CUfunction function);

#endif
