#include "sim/program/images/jit_options.h"

#include <string.h>

CUresult sim_jit_options_read(unsigned count, const CUjit_option *options, void **values, struct sim_jit_options *out) {
  *out = (struct sim_jit_options){0};
  if (count && (options == NULL || values == NULL))
    return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; i++) {
    struct sim_jit_log *log = options[i] <= CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES ? &out->info : &out->error;
    if (options[i] < 0 || options[i] >= CU_JIT_NUM_OPTIONS)
      return CUDA_ERROR_INVALID_VALUE;
    if (options[i] == CU_JIT_WALL_TIME)
      out->wall_time = &values[i];
    if (options[i] == CU_JIT_INFO_LOG_BUFFER || options[i] == CU_JIT_ERROR_LOG_BUFFER)
      log->text = values[i];
    if (options[i] == CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES || options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) {
      log->room = (unsigned)(uintptr_t)values[i]; /* the size is passed as an unsigned int */
      log->filled = &values[i];
    }
  }
  return CUDA_SUCCESS;
}

static void write_log(const struct sim_jit_log *log, const char *text) {
  size_t bytes = strlen(text) + 1;
  if (log->text == NULL || log->room == 0) {
    bytes = 0;
  } else {
    bytes = bytes < log->room ? bytes : log->room;
    memcpy(log->text, text, bytes - 1);
    log->text[bytes - 1] = '\0';
  }
  if (log->filled)
    *log->filled = (void *)(uintptr_t)(bytes > 1 ? bytes : 0);
}

void sim_jit_options_answer(const struct sim_jit_options *options, const char *error) {
  const float no_time = 0;
  write_log(&options->info, "");
  write_log(&options->error, error ? error : "");
  if (options->wall_time)
    memcpy(options->wall_time, &no_time, sizeof no_time);
}
