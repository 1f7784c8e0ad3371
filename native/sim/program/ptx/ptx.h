/* Parses the declarations in a PTX text. */
#ifndef SIM_PTX_H
#define SIM_PTX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SIM_PARAMS_MAX = 1024, SIM_ARGUMENTS_MAX = 32764 /* bytes of all of a kernel's parameters */ };

struct sim_param {
  uint16_t offset, size;
};

/* Names point into the text. */
struct sim_ptx_kernel {
  const char *name;
  size_t name_length;
  unsigned nparams;
  bool params_known; /* false: more than SIM_PARAMS_MAX, or than SIM_ARGUMENTS_MAX */
  struct sim_param params[SIM_PARAMS_MAX];
  size_t local_bytes;  /* size of a thread's stack frame */
  size_t shared_bytes; /* per block, without dynamic shared memory */
  struct sim_ptx_kernel *next;
};

enum sim_ptx_kind { SIM_PTX_BYTES, SIM_PTX_TEXTURE, SIM_PTX_SURFACE };

struct sim_ptx_variable {
  enum sim_ptx_kind kind; /* a texture or surface reference has no bytes */
  const char *name;
  size_t name_length;
  uint64_t bytes;
  struct sim_ptx_variable *next;
};

struct sim_ptx {
  struct sim_ptx_kernel *kernels; /* in the order of the text */
  struct sim_ptx_variable *variables;
  bool no_memory;
};

/* text is NUL-terminated, and one that sim_ptx_check accepts. Release the result with sim_ptx_free. */
void sim_ptx_read(const char *text, struct sim_ptx *out);
void sim_ptx_free(struct sim_ptx *ptx);

#endif
