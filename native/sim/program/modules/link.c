/* Linking programs (cuLink*): PTX texts and binaries in, one cubin out. Nothing is compiled; an input is only checked
 * for its form. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/model/handle.h"
#include "sim/program/images/image.h"
#include "sim/program/images/jit_options.h"
#include "sim/program/images/linked.h"

struct sim_link {
  uint32_t magic;
  struct sim_jit_options options; /* of cuLinkCreate: their buffers are written until the link is destroyed */
  struct sim_link_input *inputs, **last;
  struct sim_program_size size;
  unsigned char *cubin; /* NULL until complete */
};

static struct sim_kind link_kind = {sizeof(struct sim_link), 0x6c696e6b, NULL};

static CUresult get(CUlinkState handle, struct sim_link **link) {
  *link = (struct sim_link *)handle;
  return *link && (*link)->magic == link_kind.magic ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuLinkCreate_v2(unsigned int numOptions, CUjit_option *options, void **optionValues, CUlinkState *stateOut) {
  struct sim_ctx *ctx;
  struct sim_jit_options read;
  CUresult result = sim_ctx_need(&ctx);
  if (result == CUDA_SUCCESS)
    result = stateOut ? sim_jit_options_read(numOptions, options, optionValues, &read) : CUDA_ERROR_INVALID_VALUE;
  if (result)
    return result;
  sim_lock();
  struct sim_link *link = sim_handle_new(&link_kind);
  sim_unlock();
  if (link == NULL)
    return CUDA_ERROR_OUT_OF_MEMORY;
  link->options = read;
  link->last = &link->inputs;
  *stateOut = (CUlinkState)link;
  return CUDA_SUCCESS;
}
/* ---- inputs ------------------------------------------------------------------------------------------------------ */

static CUresult fail(struct sim_link *link, CUresult result, const char *name, const char *log) {
  char line[SIM_PTX_LOG];
  if (*log == '\0')
    snprintf(line, sizeof line, "error   : no image of this type in input '%s'", name);
  sim_jit_options_answer(&link->options, *log ? log : line);
  return result;
}

static CUresult text_size(const char *text, struct sim_program_size *size, char log[SIM_PTX_LOG]) {
  struct sim_image *image;
  CUresult result = sim_image_load(text, NULL, &image, log);
  if (result)
    return result == CUDA_ERROR_INVALID_IMAGE ? CUDA_ERROR_INVALID_PTX : result;
  *size = image->loaded;
  sim_image_free(image);
  return CUDA_SUCCESS;
}

/* Checks that the input has the form that its type demands, and computes its size. log: as in sim_image_load. */
static CUresult measure(CUjitInputType type, const struct sim_link_input *input, struct sim_program_size *size,
                        char log[SIM_PTX_LOG]) {
  static const char archive[] = "!<arch>\n";
  enum { HEADERS = 64 }; /* of which sim_binary_bytes reads */
  *log = '\0';
  *size = (struct sim_program_size){.code = input->bytes};
  if (input->text)
    return text_size((const char *)input->data, size, log);
  if (type == CU_JIT_INPUT_LIBRARY)
    return input->bytes < sizeof archive || memcmp(input->data, archive, sizeof archive - 1) != 0
               ? CUDA_ERROR_INVALID_IMAGE
               : CUDA_SUCCESS;
  if (type != CU_JIT_INPUT_CUBIN && type != CU_JIT_INPUT_FATBINARY)
    return CUDA_SUCCESS; /* host objects and intermediate code are only searched for names */
  enum sim_image_form form = type == CU_JIT_INPUT_CUBIN ? SIM_FORM_CUBIN : SIM_FORM_FATBIN;
  if (input->bytes < HEADERS || sim_image_form(input->data) != form || sim_binary_bytes(input->data) == 0 ||
      sim_binary_bytes(input->data) > input->bytes)
    return CUDA_ERROR_INVALID_IMAGE;
  *size = sim_binary_size(input->data, input->bytes);
  return CUDA_SUCCESS;
}

static struct sim_link_input *input_new(const void *data, size_t bytes, bool text) {
  struct sim_link_input *input = calloc(1, sizeof *input);
  unsigned char *copy = malloc(bytes + 1);
  if (input == NULL || copy == NULL) {
    free(input);
    free(copy);
    return NULL;
  }
  memcpy(copy, data, bytes);
  copy[bytes] = '\0';
  *input = (struct sim_link_input){.bytes = text ? strlen((char *)copy) : bytes, .data = copy, .text = text};
  return input;
}

static void input_free(struct sim_link_input *input) {
  free(input->data);
  free(input);
}

static CUresult add(struct sim_link *link, CUjitInputType type, const void *data, size_t bytes, const char *name) {
  char log[SIM_PTX_LOG];
  struct sim_program_size size;
  struct sim_link_input *input = input_new(data, bytes, type == CU_JIT_INPUT_PTX);
  if (input == NULL)
    return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = measure(type, input, &size, log);
  if (result) {
    input_free(input);
    return fail(link, result, name, log);
  }
  link->size.code += size.code;
  link->size.data += size.data;
  *link->last = input;
  link->last = &input->next;
  return CUDA_SUCCESS;
}

static CUresult may_add(CUlinkState state, CUjitInputType type, unsigned count, const CUjit_option *options,
                        void **values, struct sim_link **link) {
  struct sim_jit_options unused;
  CUresult result = get(state, link);
  if (result == CUDA_SUCCESS)
    result = sim_jit_options_read(count, options, values, &unused);
  if (result == CUDA_SUCCESS && (type < 0 || type >= CU_JIT_NUM_INPUT_TYPES || (*link)->cubin))
    result = CUDA_ERROR_INVALID_VALUE;
  return result;
}

CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void *data, size_t size, const char *name,
                          unsigned int numOptions, CUjit_option *options, void **optionValues) {
  enum { MAX_INPUT = 1 << 30 };
  struct sim_link *link;
  CUresult result = may_add(state, type, numOptions, options, optionValues, &link);
  if (result)
    return result;
  if (data == NULL || size == 0 || size > MAX_INPUT)
    return CUDA_ERROR_INVALID_VALUE;
  return add(link, type, data, size, name ? name : "unnamed");
}
CUresult cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char *path, unsigned int numOptions,
                          CUjit_option *options, void **optionValues) {
  struct sim_link *link;
  size_t bytes;
  CUresult result = may_add(state, type, numOptions, options, optionValues, &link);
  if (result)
    return result;
  if (path == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  char *data = sim_image_read_file(path, &bytes);
  if (data == NULL)
    return CUDA_ERROR_FILE_NOT_FOUND;
  result = add(link, type, data, bytes, path);
  free(data);
  return result;
}
/* ---- output ------------------------------------------------------------------------------------------------------ */

CUresult cuLinkComplete(CUlinkState state, void **cubinOut, size_t *sizeOut) {
  struct sim_link *link;
  size_t bytes;
  CUresult result = get(state, &link);
  if (result)
    return result;
  if (cubinOut == NULL || link->cubin || link->inputs == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  link->cubin = sim_linked_write(link->inputs, link->size, &bytes);
  if (link->cubin == NULL)
    return CUDA_ERROR_OUT_OF_MEMORY;
  sim_jit_options_answer(&link->options, NULL);
  *cubinOut = link->cubin;
  if (sizeOut)
    *sizeOut = bytes;
  return CUDA_SUCCESS;
}

CUresult cuLinkDestroy(CUlinkState state) {
  struct sim_link *link;
  CUresult result = get(state, &link);
  if (result)
    return result;
  for (struct sim_link_input *input = link->inputs, *next; input; input = next) {
    next = input->next;
    input_free(input);
  }
  free(link->cubin);
  sim_lock();
  sim_handle_free(&link_kind, link);
  sim_unlock();
  return CUDA_SUCCESS;
}
