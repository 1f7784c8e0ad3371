/* Programs: modules and libraries. */
#ifndef GPUSHARE_CODE_H
#define GPUSHARE_CODE_H

#include "image/gs_image.h"
#include "interposer/hooks/call.h"
#include "interposer/process/process.h"

/* Device memory that an image in a file takes on a device of this capability, and whether the driver refuses the image
 * whatever memory is free. False: out of memory to read the file. Files that cannot be opened, or are not regular
 * files, are left for the driver to refuse. */
bool gs_file_size(const char *path, unsigned capability, struct gs_image_size *size, bool *wrong);
/* Handles of functions may be reused from now on. */
void gs_functions_gone(void);

/* ---- handlers ---- */

CUresult gs_do_module_load_file(const struct gs_call *call, CUmodule *module, const char *path);
/* wrong: the driver refuses the call whatever the image is. */
CUresult gs_do_module_load(const struct gs_call *call, CUmodule *module, const void *image, bool wrong);
/* libraries.c: calls that use a library in the current context. variables: only its variables. */
CUresult gs_do_library_use(const struct gs_call *call, CUlibrary library, bool variables);

#endif
