/* The error convention of all C code in this project: a function that can fail returns 0 or a negative errno, takes
 * struct gs_err * as its last parameter and leaves it untouched on success. The struct has a fixed size, so no failure
 * path allocates memory inside a tenant's process. */
#ifndef GS_ERR_H
#define GS_ERR_H

struct gs_err {
  int code;      /* negative errno */
  char msg[200]; /* one line: what failed, why, and what to do */
};

#ifndef GS_CFFI
#include <stdarg.h>
#include <stdio.h>

__attribute__((format(printf, 3, 4))) static inline int gs_fail(struct gs_err *err, int code, const char *format, ...) {
  va_list args;
  if (err) {
    err->code = code;
    va_start(args, format);
    vsnprintf(err->msg, sizeof err->msg, format, args);
    va_end(args);
  }
  return code;
}
#endif
#endif
