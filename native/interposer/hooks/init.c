#include <stdlib.h>

#include "hooks.h"
#include "interposer/os/files/files.h"
#include "interposer/process/device.h"
#include "interposer/process/visible.h"
#include "interposer/residency/mover.h"

/* Prints a line, once per process, if the driver finds none of the devices that the program asks for, and may open
 * files. */
static void mention_nodes(CUresult result) {
  static uint32_t warned;
  char words[GS_VISIBLE_BYTES];
  if (result == CUDA_ERROR_NO_DEVICE && !gs_files_short() &&
      gs_visible_words(gs_process->limits, getenv("CUDA_VISIBLE_DEVICES"), words) > 0 &&
      __atomic_exchange_n(&warned, 1, __ATOMIC_RELAXED) == 0)
    gs_say("the driver can open no device here: a sandbox has to let their nodes through (bwrap --dev-bind /dev /dev)");
}

CUresult gs_cuInit(unsigned int flags) {
  CUresult result;
  bool joined = gs_enter(&result);
  if (!joined && result != CUDA_SUCCESS)
    return result;
  bool reads = joined && gs_visible_begin();
  result = gs_real.cuInit(flags);
  if (reads)
    gs_visible_end(result == CUDA_SUCCESS);
  if (joined && result == CUDA_SUCCESS) {
    gs_devices_map();
    gs_mover_start();
  } else if (joined) {
    gs_files_mention("cuInit", result);
    mention_nodes(result);
  }
  return result;
}
