/* A CUPTI for devices that cannot be traced: profilers report host activity and no device activity. NVIDIA's own
 * library needs private tables of NVIDIA's driver, and ends the program if it does not get them. */
#include <stdint.h>
#include <time.h>

#include "sim_cupti.h"

enum { CUPTI_SUCCESS = 0, CUPTI_ERROR_INVALID_PARAMETER = 1, CUPTI_ERROR_NOT_SUPPORTED = 27 };

/* CUPTI_API_VERSION of the last release of each major version. */
#if SIM_CUDA_MAJOR == 12
enum { VERSION = 26 };
#else
enum { VERSION = 130202 };
#endif

CUPTI_API(int, cuptiGetVersion, (uint32_t *version)) {
  if (!version)
    return CUPTI_ERROR_INVALID_PARAMETER;
  *version = VERSION;
  return CUPTI_SUCCESS;
}

static int text_of(int result, const char **text) {
  if (!text)
    return CUPTI_ERROR_INVALID_PARAMETER;
  *text = result == CUPTI_SUCCESS               ? "CUPTI_SUCCESS"
          : result == CUPTI_ERROR_NOT_SUPPORTED ? "CUPTI_ERROR_NOT_SUPPORTED: the device is simulated"
                                                : "CUPTI_ERROR";
  return CUPTI_SUCCESS;
}

CUPTI_API(int, cuptiGetResultString, (int result, const char **text)) { return text_of(result, text); }
CUPTI_API(int, cuptiGetErrorMessage, (int result, const char **text)) { return text_of(result, text); }

/* Nanoseconds since the epoch, as if the program had not registered a clock of its own. */
CUPTI_API(int, cuptiGetTimestamp, (uint64_t *timestamp)) {
  struct timespec now;
  if (!timestamp)
    return CUPTI_ERROR_INVALID_PARAMETER;
  clock_gettime(CLOCK_REALTIME, &now);
  *timestamp = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
  return CUPTI_SUCCESS;
}

/* There is nothing to finalise. */
CUPTI_API(int, cuptiFinalize, (void)) { return CUPTI_SUCCESS; }
CUPTI_API(int, cuptiActivityFlushAll, (uint32_t flags)) {
  (void)flags;
  return CUPTI_SUCCESS;
}
