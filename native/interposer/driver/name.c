/* A library that only provides a name. A program that opens libcuda.so or libnvidia-ml.so, without the version, would
 * get the driver's own file and bypass the interposer: the loader recognises loaded libraries by their SONAME, which
 * includes the version for the interposer. This library has the name without the version and depends on the interposer,
 * in which symbol lookups then end. */
typedef int gs_nothing_is_defined_here;
