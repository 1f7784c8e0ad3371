/* How much device memory a program takes in a context: PTX text, a cubin, a fatbin or the wrapper nvcc registers one
 * by.
 *
 * The driver says it to nobody: the size of code is no attribute, and the device's free memory is moved by neighbours.
 * So the image itself is read. Code is what a cubin says will be loaded; of PTX it is taken to be as long as the text,
 * and of what is compressed as long as it was before (a cubin's code and data are some 95 % of it). Variables are what
 * they are declared to be. Of a fatbin's parts the driver loads the one that fits the device best. What a compressed
 * part declares without a value (.bss of its kind) is not seen. */
#ifndef GS_IMAGE_H
#define GS_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gs_image_size {
  uint64_t code; /* of all kernels together; of what is compressed, all there is */
  uint64_t data; /* variables and constants */
};

/* limit: bytes that may be read, SIZE_MAX where the image is as long as it says itself. capability: 10 times the
 * device's major version and its minor one, 0 where devices differ: then the largest part counts. Nothing: none of
 * these. */
struct gs_image_size gs_image_size(const void *image, size_t limit, unsigned capability);
/* It is none of these, whatever its size: neither a binary nor a text that begins as every program does. */
bool gs_image_wrong(const void *image, size_t limit);

#endif
