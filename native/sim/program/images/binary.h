/* Binary programs: a cubin, or a fatbin of several cubins and PTX texts. Only their layout is read; the machine code is
 * not executed.
 *
 * This code is deliberately independent of native/image: it decides how much memory a program takes on the simulated
 * device, and the interposer's prediction is tested against it. */
#ifndef SIM_BINARY_H
#define SIM_BINARY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sim/program/ptx/ptx.h"

/* Device memory that a program takes in a context, in bytes. */
struct sim_program_size {
  uint64_t code; /* of all kernels */
  uint64_t data; /* variables and constants, each allocated separately */
};

enum sim_image_form {
  SIM_FORM_TEXT, /* or anything else */
  SIM_FORM_CUBIN,
  SIM_FORM_FATBIN,
  SIM_FORM_WRAPPER /* the struct that nvcc's host code registers; it points to a fatbin */
};
/* The image must have at least 4 bytes. */
enum sim_image_form sim_image_form(const void *image);
const void *sim_wrapped(const void *wrapper); /* the fatbin that a wrapper points to */

/* The length of a cubin or fatbin according to its headers, of which 64 bytes must be readable; 0: invalid headers. */
size_t sim_binary_bytes(const void *image);
/* The size of a PTX text: code is estimated as the length of the text. */
struct sim_program_size sim_text_size(const char *text);
/* The size of a complete cubin or fatbin. Of a fatbin's parts this device loads the cubin with the newest architecture
 * it can run, otherwise the newest PTX it can compile. If no part fits, the largest one counts. */
struct sim_program_size sim_binary_size(const void *image, size_t bytes);
/* The size of a variable or constant in a complete cubin or fatbin; 0: none of that name. Compressed parts are not
 * read. */
uint64_t sim_binary_variable(const void *image, size_t bytes, const char *name);
/* Resources that a complete cubin or fatbin declares for a kernel. False, with *needs unchanged: it declares none, or
 * the part is compressed. */
enum { SIM_REGISTERS_ASSUMED = 32 /* of a thread, if the image does not declare them */ };
struct sim_kernel_needs {
  unsigned registers; /* per thread */
  unsigned shared;    /* bytes per block, without dynamic shared memory */
  bool params_known;  /* false: it has more than SIM_PARAMS_MAX, or the image says nothing about them */
  unsigned nparams;
  struct sim_param params[SIM_PARAMS_MAX];
};
bool sim_binary_kernel(const void *image, size_t bytes, const char *name, struct sim_kernel_needs *needs);
/* A copy of a complete cubin or fatbin, with compressed parts expanded where that is possible; *size: its size. The
 * caller frees it. NULL: out of memory. */
unsigned char *sim_binary_expand(const void *image, size_t bytes, size_t *size);
/* A part that the device could load is compressed; if there is none, any part. */
bool sim_binary_compressed(const void *image, size_t bytes);

#endif
