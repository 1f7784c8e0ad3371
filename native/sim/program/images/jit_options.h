/* The options of calls that compile or link, and the results reported through them. */
#ifndef SIM_JIT_OPTIONS_H
#define SIM_JIT_OPTIONS_H

#include "sim/model/process.h"

/* The text buffers of a caller; text is NULL if the caller gave none. filled: where the length of the text is written,
 * in the caller's array of values. */
struct sim_jit_log {
  char *text;
  size_t room;
  void **filled;
};
struct sim_jit_options {
  struct sim_jit_log info, error;
  void **wall_time; /* the caller's value for the time spent, a float in ms; NULL: not asked for */
};

/* Reads a caller's arrays, which must stay valid as long as *out is used. INVALID_VALUE if an option is unknown or an
 * array is missing. */
CUresult sim_jit_options_read(unsigned count, const CUjit_option *options, void **values, struct sim_jit_options *out);
/* Fills in the caller's buffers and values. error: text about the failure; NULL: none. */
void sim_jit_options_answer(const struct sim_jit_options *options, const char *error);

#endif
