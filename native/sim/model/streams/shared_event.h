/* Interprocess events. Requires sim_lock unless noted otherwise. */
#ifndef SIM_SHARED_EVENT_H
#define SIM_SHARED_EVENT_H

#include "sim/model/event.h"

struct sim_shared_event *sim_shared_event_new(CUdevice device); /* NULL: out of memory */
CUresult sim_shared_event_record(struct sim_shared_event *event, struct sim_stream *stream);
CUresult sim_shared_event_wait(struct sim_shared_event *event, struct sim_stream *stream);
bool sim_shared_event_done(struct sim_shared_event *event);
/* Call without sim_lock. */
void sim_shared_event_sync(struct sim_shared_event *event, CUdevice device, bool blocking);
/* Makes the handle with which another process opens the event, and opens an event by such a handle. Errors:
 * INVALID_VALUE, INVALID_CONTEXT, MAP_FAILED. */
CUresult sim_shared_event_handle(const struct sim_shared_event *event, CUipcEventHandle *handle);
CUresult sim_shared_event_open(CUipcEventHandle handle, struct sim_shared_event **event);

#endif
