#include "interposer/time/marks/inside.h"

#include <errno.h>
#include <pthread.h>

#include "interposer/time/streams/capture.h"

bool gs_inside_begin(struct gs_inside *inside, const struct gs_context *context) {
  CUcontext current = NULL;
  inside->saved = errno;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &inside->cancel);
  inside->mode = gs_capture_mode_push();
  inside->pushed = false;
  if (!context || (gs_real.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == context->handle))
    return true;
  inside->pushed = gs_real.cuCtxPushCurrent_v2(context->handle) == CUDA_SUCCESS;
  return inside->pushed;
}

void gs_inside_end(const struct gs_inside *inside) {
  int before;
  CUcontext popped;
  if (inside->pushed)
    gs_real.cuCtxPopCurrent_v2(&popped);
  gs_capture_mode_pop(inside->mode);
  pthread_setcancelstate(inside->cancel, &before);
  errno = inside->saved;
}
