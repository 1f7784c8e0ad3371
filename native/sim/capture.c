#include "capture.h"
void sim_event_uncapture(struct sim_event *event) { (void)event; }
CUresult sim_capture_guard_locked(void) { return CUDA_SUCCESS; }
CUresult sim_capture_guard(void) { return CUDA_SUCCESS; }
void sim_capture_invalidate(struct sim_capture *capture) { capture->invalid = true; }
CUresult sim_capture_append(struct sim_stream *stream, const struct sim_op *op) { (void)stream, (void)op; return CUDA_ERROR_NOT_SUPPORTED; }
CUresult sim_capture_implicit(struct sim_stream *stream) { (void)stream; return CUDA_SUCCESS; }
CUresult sim_capture_record(struct sim_stream *stream, struct sim_event *event, unsigned flags) { (void)stream, (void)event, (void)flags; return CUDA_ERROR_NOT_SUPPORTED; }
CUresult sim_capture_wait(struct sim_stream *stream, struct sim_event *event, unsigned flags) { (void)stream, (void)event, (void)flags; return CUDA_ERROR_NOT_SUPPORTED; }
void sim_capture_stream_gone(struct sim_stream *stream) { (void)stream; }
