/* The image parsers of the simulator and of the interposer, on a file named by a program. They share no code. */
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"
#include "image/gs_image.h"
#include "sim/model/card.h"
#include "sim/program/images/image.h"

/* Functions of the simulated driver that image.c needs. */
void sim_lock(void) {}
void sim_unlock(void) {}
CUresult sim_ready(void) { return CUDA_SUCCESS; }
void *sim_handle_new(struct sim_kind *kind) {
  uint32_t *object = calloc(1, kind->bytes);
  *object = kind->magic;
  return object;
}
void sim_handle_free(struct sim_kind *kind, void *object) {
  (void)kind;
  free(object);
}
CUresult sim_memory_module_alloc(struct sim_ctx *ctx, uint64_t bytes, CUdeviceptr *address, uint64_t *id) {
  (void)ctx;
  *address = 512;
  *id = 1;
  return bytes < 1u << 30 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
void sim_memory_module_free(CUdeviceptr address, uint64_t id) { MUST(address == 512 && id == 1); }
CUresult sim_code_load(struct sim_ctx *ctx, uint64_t bytes) {
  (void)ctx;
  return bytes < 1u << 30 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
void sim_code_unload(struct sim_ctx *ctx, uint64_t bytes) {
  (void)ctx;
  MUST(bytes < 1u << 30);
}
bool sim_memory_module_alive(CUdeviceptr address, uint64_t id) { return address == 512 && id == 1; }

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static int file = -1;
  static char path[64];
  char log[SIM_PTX_LOG];
  struct sim_image *image;
  if (file < 0) {
    file = memfd_create("image", 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
  }
  struct gs_image_size size_of = gs_image_size(data, size, 10 * SIM_CAPABILITY_MAJOR + SIM_CAPABILITY_MINOR);
  MUST(size_of.code <= 1ull << 48 && size_of.data <= 1ull << 48);
  (void)gs_image_wrong(data, size);
  MUST(ftruncate(file, 0) == 0 && pwrite(file, data, size, 0) == (ssize_t)size);
  if (sim_image_load_file(path, NULL, &image, log) != CUDA_SUCCESS)
    return 0;
  CUdeviceptr address;
  size_t bytes;
  for (struct sim_global *global = image->globals; global; global = global->next)
    (void)sim_image_global(image, NULL, global->name, &address, &bytes);
  (void)sim_image_function(image, NULL, "spin_ns");
  (void)sim_image_function(image, NULL, "");
  (void)sim_image_function(image, NULL, "many"); /* of the corpus' cubin, which has parameters of all kinds */
  for (struct sim_function *function = image->functions; function; function = function->next)
    MUST(function->nparams <= SIM_PARAMS_MAX);
  sim_image_free(image);
  return 0;
}
