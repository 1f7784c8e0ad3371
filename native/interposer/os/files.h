/* A process that may open no, or too few, further files: the driver answers that with errors that say nothing of it,
 * and two of the descriptors are ours. */
#ifndef GPUSHARE_FILES_H
#define GPUSHARE_FILES_H

#include <stdbool.h>

#include "api/gs_cuda.h"
#include "page/gs_err.h"

bool gs_files_short(void);
/* -EMFILE, with the limit and what to do. */
int gs_files_fail(struct gs_err *err);
/* A call of the driver failed: says one line, once per process, if that is why. */
void gs_files_mention(const char *call, CUresult result);

#endif
