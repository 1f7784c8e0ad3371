/* Estimates how much device memory a program image takes in a context. An image is PTX text, a cubin, a fatbin, or the
 * wrapper under which nvcc registers a fatbin.
 *
 * The driver does not report this: no attribute gives the size of code, and other processes change the device's free
 * memory. So the image itself is read. For a cubin, code is the size of the loadable sections. For PTX, code is
 * estimated as the length of the text; for compressed parts, as the uncompressed length (code and data are about 95 %
 * of a cubin). Variables count with their declared size. Of the parts of a fatbin, the one the driver would load is
 * counted. Zero-initialised data (.bss) inside compressed parts is not counted. */
#ifndef GS_IMAGE_H
#define GS_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gs_image_size {
  uint64_t code; /* of all kernels; for compressed parts, the whole uncompressed length */
  uint64_t data; /* variables and constants */
};

/* limit: bytes that may be read; SIZE_MAX if the length in the image's own headers can be trusted. capability: 10 *
 * major + minor version of the device, or 0 if devices differ, in which case the largest part counts. Returns zeros for
 * anything else. */
struct gs_image_size gs_image_size(const void *image, size_t limit, unsigned capability);
/* True if the data is not an image in any of these formats, whatever its size. */
bool gs_image_wrong(const void *image, size_t limit);

#endif
