/* The pages of this process's grant, mapped from its directory and checked. */
#ifndef GPUSHARE_PAGES_H
#define GPUSHARE_PAGES_H

#include "page/page.h"

/* Maps <dir>/limits read-only and <dir>/usage writable, and checks both. usage: a descriptor of the usage page to be
 * mapped instead, which stays the caller's; -1: none. -ENOENT: no such grant. -EPROTO: the files are not valid pages of
 * this version. -EROFS or -EACCES: the usage page cannot be opened for writing. */
int gs_pages_map(const char *dir, int usage, struct gs_pages *pages, struct gs_err *err);
/* For a viewer: maps limits read-only, and usage read-only if it is readable (else NULL). */
int gs_pages_view(const char *dir, struct gs_pages *pages, struct gs_err *err);

#endif
