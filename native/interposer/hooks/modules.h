/* Programs: modules and libraries. */
#ifndef GPUSHARE_CODE_H
#define GPUSHARE_CODE_H

#include "image/gs_image.h"
#include "interposer/hooks/call.h"
#include "interposer/process/process.h"

/* What an image in a file takes of a device of this capability, and whether the driver refuses it whatever room there
 * is. False: there is no memory to look at the file in. What cannot be opened or is no file the driver refuses by
 * itself. */
bool gs_file_size(const char *path, unsigned capability, struct gs_image_size *size, bool *wrong);
/* Handles of functions may come back as others'. */
void gs_functions_gone(void);

/* ---- handlers ---- */

CUresult gs_do_module_load_file(const struct gs_call *call, CUmodule *module, const char *path);
/* wrong: the driver refuses the call whatever the image is. */
CUresult gs_do_module_load(const struct gs_call *call, CUmodule *module, const void *image, bool wrong);
/* libraries.c: calls that use a library in the current context, all of it or its variables. */
CUresult gs_do_library_use(const struct gs_call *call, CUlibrary library, bool variables);

#endif
