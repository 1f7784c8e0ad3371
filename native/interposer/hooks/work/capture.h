/* Calls that begin and end stream captures, and the end of streams. */
#ifndef GPUSHARE_HOOKS_CAPTURE_H
#define GPUSHARE_HOOKS_CAPTURE_H

#include "interposer/process/process.h"

struct gs_around_capture_begin {
  bool active; /* the capture is counted */
  CUstream stream;
  CUcontext context;
};
CUresult gs_before_capture_begin(struct gs_around_capture_begin *around, CUstream stream);
CUresult gs_after_capture_begin(struct gs_around_capture_begin *around, CUresult result);

struct gs_around_capture_end {
  bool active;
  CUstream stream;
};
CUresult gs_before_capture_end(struct gs_around_capture_end *around, CUstream stream);
CUresult gs_after_capture_end(struct gs_around_capture_end *around, CUresult result);

/* A stream that waits for an event of a capture belongs to the capture from then on. The call takes no device time and
 * never waits for a lease. */
struct gs_around_event_awaited {
  bool joins;
};
CUresult gs_before_event_awaited(struct gs_around_event_awaited *around, CUstream stream, CUevent event);
CUresult gs_after_event_awaited(struct gs_around_event_awaited *around, CUresult result);

struct gs_around_stream_gone {
  bool active;
  CUstream stream;
};
CUresult gs_before_stream_gone(struct gs_around_stream_gone *around, CUstream stream);
CUresult gs_after_stream_gone(struct gs_around_stream_gone *around, CUresult result);

#endif
