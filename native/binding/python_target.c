/* In a cross build Python's headers are those of the build machine: checks that their sizes of types and order of bytes
 * are the target's. */
#include <Python.h>

#define GS_SAME(what, type) \
  _Static_assert(SIZEOF_##what == sizeof(type), "Python's headers are for another kind of machine")
GS_SAME(VOID_P, void *);
GS_SAME(SHORT, short);
GS_SAME(INT, int);
GS_SAME(LONG, long);
GS_SAME(LONG_LONG, long long);
GS_SAME(SIZE_T, size_t);
GS_SAME(WCHAR_T, wchar_t);
GS_SAME(DOUBLE, double);
#ifdef WORDS_BIGENDIAN
#error "Python's headers are for a machine with the other order of bytes"
#endif
