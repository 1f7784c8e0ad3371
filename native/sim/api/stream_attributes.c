/* Attributes of streams. */
#include <string.h>

#include "sim/model/time/streams.h"

static bool of_streams(CUstreamAttrID id) { return id != SIM_ATTRIBUTE_COOPERATIVE; }

CUresult cuStreamGetAttribute(CUstream hStream, CUstreamAttrID attr, CUstreamAttrValue *value_out) {
  struct sim_stream *stream;
  union sim_attribute value;
  CUresult result = sim_stream_get(hStream, &stream);
  if (result)
    return result;
  sim_lock();
  bool known = value_out && of_streams(attr) && sim_attribute_get(&stream->attributes, attr, &value);
  if (known && attr == SIM_ATTRIBUTE_PRIORITY)
    value.number = stream->priority;
  sim_unlock();
  if (known)
    memcpy(value_out, &value, sizeof value);
  return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuStreamSetAttribute(CUstream hStream, CUstreamAttrID attr, const CUstreamAttrValue *value) {
  struct sim_stream *stream;
  union sim_attribute wanted;
  CUresult result = sim_stream_get(hStream, &stream);
  if (result)
    return result;
  if (value == NULL || !of_streams(attr))
    return CUDA_ERROR_INVALID_VALUE;
  memcpy(&wanted, value, sizeof wanted);
  sim_lock();
  bool kept = sim_attribute_set(&stream->attributes, attr, &wanted);
  if (kept && attr == SIM_ATTRIBUTE_PRIORITY)
    stream->priority = sim_priority(wanted.number);
  sim_unlock();
  return kept ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuStreamCopyAttributes(CUstream dst, CUstream src) {
  struct sim_stream *from, *to;
  CUresult result = sim_stream_get(src, &from);
  if (result == CUDA_SUCCESS)
    result = sim_stream_get(dst, &to);
  if (result)
    return result;
  sim_lock();
  to->priority = from->priority;
  to->attributes = from->attributes;
  sim_unlock();
  return CUDA_SUCCESS;
}
