/* A loaded program: the kernels and variables in it. */
#ifndef SIM_IMAGE_H
#define SIM_IMAGE_H

#include "sim/model/handle.h"
#include "sim/model/model.h"
#include "sim/program/images/binary.h"
#include "sim/program/duration.h"
#include "sim/program/ptx/ptx.h"
#include "sim/program/ptx/ptx_check.h"

struct sim_image;

/* What a kernel with one of these names does with memory when it runs; words.c. */
enum sim_words { SIM_NO_WORDS, SIM_TOUCHES_WORDS, SIM_SUMS_WORDS };

/* The effect of a kernel in a graph on the handle in its first argument; determined by the kernel's name.
 * set_conditional sets a condition to its second argument, of 32 bits; count_conditional decrements it; launch_graph
 * launches an executable graph from the device. */
enum sim_effect { SIM_NO_EFFECT, SIM_SETS_CONDITION, SIM_COUNTS_CONDITION, SIM_LAUNCHES_GRAPH };

/* Behind both CUfunction and CUkernel: programs pass either to a launch. */
struct sim_function {
  uint32_t magic;
  bool spins;      /* its first argument is its duration */
  bool collective; /* determined by its name; see meeting.c */
  enum sim_effect effect;
  enum sim_words words;
  const struct sim_work *work; /* of each of its threads */
  char *name;
  struct sim_image *image;
  struct sim_ctx *ctx; /* context of a module's function; NULL for a library's kernel, which belongs to no context */
  unsigned nparams;
  bool params_known; /* of PTX, and of what a cubin says */
  struct sim_param params[SIM_PARAMS_MAX];
  int attribute[CU_FUNC_ATTRIBUTE_MAX]; /* settable attributes, and those that the image declares for a kernel */
  uint64_t ready_in;                    /* id of the context for which it was last prepared */
  unsigned shared_bytes, block[3];      /* state of the oldest launch interface (cuFuncSetBlockShape...) */
  unsigned char *old_params;
  unsigned old_params_bytes;
  struct sim_function *next;
};

struct sim_global {
  char *name;
  size_t bytes;
  CUdeviceptr address; /* 0 until first requested */
  uint64_t memory_id;  /* id of the memory at address, which ends with its context */
  struct sim_global *next;
};

struct sim_reference;

struct sim_image {
  void *owner;                    /* the CUmodule or CUlibrary */
  struct sim_function *functions; /* in the order of the text; for a binary, those requested so far */
  struct sim_global *globals;
  struct sim_reference *references; /* to textures and surfaces */
  unsigned char *bytes;             /* for a binary: function names are searched for in it */
  size_t size;
  bool opaque;                    /* a binary with compressed parts: any name is assumed to be in it */
  struct sim_program_size loaded; /* size in each context that has loaded it */
  unsigned parts;                 /* number of parts of a library's code; 0: not determined yet; see sim_image_parts */
  struct sim_placed *placed;      /* parts loaded in each context; under sim_lock */
};
struct sim_placed {
  struct sim_ctx *ctx;
  uint64_t id; /* the context's id: the handle may be reused for another context */
  const void *part;
  uint64_t bytes;
  struct sim_placed *next;
};

/* Errors: INVALID_IMAGE, OUT_OF_MEMORY, those of sim_ptx_check. ctx is NULL for a library. log: what is wrong with a
 * text; otherwise empty. */
CUresult sim_image_load(const void *data, struct sim_ctx *ctx, struct sim_image **image, char log[SIM_PTX_LOG]);
CUresult sim_image_load_file(const char *path, struct sim_ctx *ctx, struct sim_image **image, char log[SIM_PTX_LOG]);
/* Reads a whole non-empty file and appends zeros: PTX is text, and the headers of a truncated binary must not be read
 * beyond the buffer. Released with free(). NULL: the file is empty or cannot be read. */
char *sim_image_read_file(const char *path, size_t *bytes);
void sim_image_free(struct sim_image *image);
/* NULL: no such function */
struct sim_function *sim_image_function(struct sim_image *image, struct sim_ctx *ctx, const char *name);
/* Memory of a variable, allocated at first use in ctx. NOT_FOUND if there is no such variable. */
CUresult sim_image_global(struct sim_image *image, struct sim_ctx *ctx, const char *name, CUdeviceptr *address,
                          size_t *bytes);

/* NULL: no texture or surface reference of that name */
struct sim_reference *sim_image_reference(struct sim_image *image, const char *name, bool surface);

/* This device loads the kernels of a library one by one, and each takes an equal part of the library's code. The number
 * of parts is fixed at the first call, because kernels of a binary are only found when they are requested. */
unsigned sim_image_parts(struct sim_image *image);
/* Loads a part of the image, and the image's variables, into a context: a module's own context, or any context for a
 * library. part: a kernel; the image itself for its variables alone; NULL for all code. */
CUresult sim_image_place(struct sim_image *image, struct sim_ctx *ctx, const void *part);

void sim_image_leave(struct sim_image *image); /* unloads it from all contexts */

/* meeting.c. The op for a launch of a kernel that waits for others. op->payload is valid until this thread's next
 * call. */
bool sim_collective(const char *name);
CUresult sim_meeting_op(uint64_t key, uint64_t ranks, struct sim_op *op);

/* words.c. The op for a launch of a kernel that touches or sums words. op->payload is valid until this thread's next
 * call. Returns the device time that it takes. */
enum { SIM_WORDS_ARGUMENTS = 3 };
uint64_t sim_words_op(enum sim_words words, const uint64_t given[SIM_WORDS_ARGUMENTS], struct sim_op *op);

/* function.c. Blocks of a launch that the device can run at the same time; its shape must be valid. */
uint64_t sim_blocks_at_once(const CUDA_KERNEL_NODE_PARAMS *kernel);
unsigned sim_shared_limit(const struct sim_function *function); /* bytes that a launch may ask for */

/* launch.c. The kernel of a launch or a node: func, or kern if func is NULL. */
static inline const void *sim_kernel_of(const CUDA_KERNEL_NODE_PARAMS *params) {
  return params->func ? (const void *)params->func : (const void *)params->kern;
}
/* params must stay valid until the op is submitted. */
CUresult sim_kernel_op(const CUDA_KERNEL_NODE_PARAMS *params, struct sim_op *op);
CUresult sim_kernel_prepare(struct sim_function *function, struct sim_ctx *ctx); /* call unlocked */

/* INVALID_HANDLE if handle is not a live function or kernel. */
CUresult sim_function_get(const void *handle, struct sim_function **function);

#endif
