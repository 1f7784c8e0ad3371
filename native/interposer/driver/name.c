/* A library that is only a name. A program that opens libcuda.so or libnvidia-ml.so, without the version, would find
 * the driver's own file behind our back: the loader knows what is loaded already by its SONAME, and ours has the
 * version. This one has the name without it, and needs ours, where lookups then end. */
typedef int gs_nothing_is_defined_here;
