/* A loaded program: the kernels and variables in it. */
#ifndef SIM_IMAGE_H
#define SIM_IMAGE_H

#include "sim/model/handle.h"
#include "sim/model/model.h"
#include "sim/program/binary.h"
#include "sim/program/ptx.h"

struct sim_image;

/* A CUfunction and a CUkernel alike: programs pass either to a launch. */
struct sim_function {
  uint32_t magic;
  bool spins;      /* takes as long as its first argument says */
  bool collective; /* by its name; see meeting.c */
  char *name;
  struct sim_image *image;
  struct sim_ctx *ctx; /* of a module's function; NULL: a library's kernel, which belongs to no context */
  unsigned nparams;    /* known for PTX only */
  bool params_known;
  struct sim_param params[SIM_PARAMS_MAX];
  int attribute[CU_FUNC_ATTRIBUTE_MAX]; /* those that can be set, and the local memory of a thread */
  uint64_t ready_in;                    /* id of the context that was last made ready for it */
  unsigned shared_bytes, block[3];      /* of the oldest launch interface */
  unsigned char *old_params;
  unsigned old_params_bytes;
  struct sim_function *next;
};

struct sim_global {
  char *name;
  size_t bytes;
  CUdeviceptr address; /* 0 until asked for */
  uint64_t memory_id;  /* of the memory at address, which ends with its context */
  struct sim_global *next;
};

struct sim_image {
  void *owner;                    /* the CUmodule or CUlibrary */
  struct sim_function *functions; /* in the order of the text; of a binary: those asked for so far */
  struct sim_global *globals;
  unsigned char *bytes; /* of a binary: names are looked for in it */
  size_t size;
  bool opaque;                    /* a binary with compressed parts: any name may be in it */
  struct sim_program_size loaded; /* in each context that has it */
  unsigned parts;                 /* in which a library's code comes, 0: nobody has asked yet; see sim_image_parts */
  struct sim_placed *placed;      /* what contexts have of it; under sim_lock */
};
struct sim_placed {
  struct sim_ctx *ctx;
  uint64_t id; /* the context's: a handle may be another context's later */
  const void *part;
  uint64_t bytes;
  struct sim_placed *next;
};

/* INVALID_IMAGE, INVALID_PTX, OUT_OF_MEMORY. ctx NULL for a library. */
CUresult sim_image_load(const void *data, struct sim_ctx *ctx, struct sim_image **image);
CUresult sim_image_load_file(const char *path, struct sim_ctx *ctx, struct sim_image **image);
void sim_image_free(struct sim_image *image);
/* NULL: not in it */
struct sim_function *sim_image_function(struct sim_image *image, struct sim_ctx *ctx, const char *name);
/* Memory of a variable, made at first use in ctx. NOT_FOUND. */
CUresult sim_image_global(struct sim_image *image, struct sim_ctx *ctx, const char *name, CUdeviceptr *address,
                          size_t *bytes);

/* This device loads the kernels of a library one by one, and each takes an equal part of its code. How many there are
 * is fixed by the first who asks: of a binary more are found as they are named. */
unsigned sim_image_parts(struct sim_image *image);
/* A part of the image is used in a context, its own or, of a library, any: there it is from then on, and the variables
 * with it. part: a kernel; the image itself for its variables alone; NULL for all code. */
CUresult sim_image_place(struct sim_image *image, struct sim_ctx *ctx, const void *part);

void sim_image_leave(struct sim_image *image); /* all contexts */

/* meeting.c. What a launch of a kernel that waits for others is; op->payload is good until this thread's next call. */
bool sim_collective(const char *name);
CUresult sim_meeting_op(uint64_t key, uint64_t ranks, struct sim_op *op);

/* launch.c. params stays the caller's until the op is submitted. */
CUresult sim_kernel_op(const CUDA_KERNEL_NODE_PARAMS *params, struct sim_op *op);
CUresult sim_kernel_prepare(struct sim_function *function, struct sim_ctx *ctx); /* unlocked */

/* INVALID_HANDLE */
CUresult sim_function_get(const void *handle, struct sim_function **function);

#endif
