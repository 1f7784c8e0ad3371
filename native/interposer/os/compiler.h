/* Compiler-specific definitions. */
#ifndef GPUSHARE_COMPILER_H
#define GPUSHARE_COMPILER_H

#define GS_LIKELY(condition) __builtin_expect(!!(condition), 1)
#define GS_UNLIKELY(condition) __builtin_expect(!!(condition), 0)
/* Thread-local storage that is accessed without a function call: the library is loaded at program start, or early
 * enough to find room in the static TLS block. */
#define GS_TLS_MODEL __attribute__((tls_model("initial-exec")))
#define GS_TLS static __thread GS_TLS_MODEL

#endif
