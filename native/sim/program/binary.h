/* Programs that are binaries: a cubin, or a fatbin of several cubins and PTX texts. Only their layout is read; the
 * machine code means nothing here.
 *
 * The simulated device decides by itself what a program takes of it, and reads images with this code alone: whoever
 * predicts it (the interposer) is judged by it. */
#ifndef SIM_BINARY_H
#define SIM_BINARY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Device memory that a program takes in a context, bytes. */
struct sim_program_size {
  uint64_t code; /* of all kernels together */
  uint64_t data; /* variables and constants, each in a place of its own */
};

enum sim_image_form {
  SIM_FORM_TEXT, /* or anything else */
  SIM_FORM_CUBIN,
  SIM_FORM_FATBIN,
  SIM_FORM_WRAPPER /* what nvcc's host code registers: a pointer to a fatbin */
};
/* Of at least 4 bytes. */
enum sim_image_form sim_image_form(const void *image);
const void *sim_wrapped(const void *wrapper); /* what a wrapper points to */

/* The length of a cubin or fatbin by its own headers, of which 64 bytes can be read; 0: they cannot be right. */
size_t sim_binary_bytes(const void *image);
/* Of a text: one instruction is taken to be as long as its line, so all code as long as the text. */
struct sim_program_size sim_text_size(const char *text);
/* Of a whole cubin or fatbin. Of a fatbin's parts this device loads the cubin of the newest architecture that it runs,
 * else the newest PTX that it can compile, else (nothing fits) the largest counts. */
struct sim_program_size sim_binary_size(const void *image, size_t bytes);
bool sim_binary_compressed(const void *image, size_t bytes); /* some part of a fatbin is */

#endif
