/* Detects a process that has reached its limit on open files: the driver then fails with errors that do not mention it,
 * and two of the descriptors are the interposer's. */
#ifndef GPUSHARE_FILES_H
#define GPUSHARE_FILES_H

#include <stdbool.h>

#include "api/gs_cuda.h"
#include "page/gs_err.h"

/* Whether the process cannot open more files. */
bool gs_files_short(void);
/* Fills err with the limit and what to do, and returns -EMFILE. */
int gs_files_fail(struct gs_err *err);
/* To be called after a driver call failed: prints one line, once per process, if the limit is the reason. */
void gs_files_mention(const char *call, CUresult result);

#endif
