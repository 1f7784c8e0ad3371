/* Calls that wait for work, or ask whether it is done. */
#ifndef GPUSHARE_HOOKS_SYNC_H
#define GPUSHARE_HOOKS_SYNC_H

#include "interposer/process/process.h"
#include "interposer/time/streams/repeat.h"
#include "interposer/time/timing.h"

struct gs_around_sync_stream {
  struct gs_repeat
      *repeat;       /* of the last launch in the stream; then only `tick` and `launches` are set below. Else NULL */
  uint64_t tick;     /* when the wait began */
  uint64_t launches; /* gs_stream_arrived then */
  bool active;       /* this process is joined */
  CUstream handle;
  struct gs_stream *stream; /* NULL: not known */
};
CUresult gs_before_sync_stream(struct gs_around_sync_stream *around, CUstream stream);
CUresult gs_after_sync_stream(struct gs_around_sync_stream *around, CUresult result);

struct gs_around_query_stream {
  struct gs_stream *stream;
};
CUresult gs_before_query_stream(struct gs_around_query_stream *around, CUstream stream);
CUresult gs_after_query_stream(struct gs_around_query_stream *around, CUresult result);

struct gs_around_sync_context {
  CUcontext context; /* NULL: nothing to do */
};
/* context: NULL is the current one. */
CUresult gs_before_sync_context(struct gs_around_sync_context *around, CUcontext context);
CUresult gs_after_sync_context(struct gs_around_sync_context *around, CUresult result);

struct gs_around_event_record {
  CUevent event;
  struct gs_stream *stream;
  uint64_t launches; /* gs_stream_arrived before the event was recorded */
};
CUresult gs_before_event_record(struct gs_around_event_record *around, CUevent event, CUstream stream);
CUresult gs_after_event_record(struct gs_around_event_record *around, CUresult result);

/* stream: the event's; NULL: not known. emptied: the stream is empty once the event is done. */
struct gs_around_event_wait {
  CUevent event;
  struct gs_stream *stream;
  bool emptied;
};
CUresult gs_before_event_wait(struct gs_around_event_wait *around, CUevent event);
CUresult gs_after_event_wait(struct gs_around_event_wait *around, CUresult result);

struct gs_around_event_query {
  CUevent event;
  struct gs_stream *stream;
  bool emptied;
};
CUresult gs_before_event_query(struct gs_around_event_query *around, CUevent event);
CUresult gs_after_event_query(struct gs_around_event_query *around, CUresult result);

/* The event is destroyed, or recorded behind more than one stream: from now on it shows nothing about the stream in
 * which it was recorded. */
CUresult gs_before_event_gone(CUevent event);
CUresult gs_before_event_shared(void);

/* The stream is about to wait for something. */
CUresult gs_before_stream_waits(CUstream stream);

#endif
