/* The one check of a mapped page. 0, or -EPROTO with what is wrong: magic, version, size, bounds, a grant id that is not
 * a string. `size`: bytes that are mapped. */
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
