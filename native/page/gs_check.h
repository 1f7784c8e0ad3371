/* Validates a mapped page before it is used. Returns 0, or -EPROTO with the reason in err: wrong magic, version, size
 * or bounds, or a grant id that is not NUL-terminated. size is the number of bytes mapped. */
#ifndef GS_CHECK_H
#define GS_CHECK_H

#ifndef GS_CFFI
#include <stdint.h>

#include "page/gs_err.h"
#include "page/gs_page.h"
#endif

int gs_limits_check(const struct gs_limits *page, uint64_t size, struct gs_err *err);
int gs_usage_check(const struct gs_usage *page, uint64_t size, struct gs_err *err);

#endif
