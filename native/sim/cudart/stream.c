/* Streams, events, graphs and capture: runtime functions that pass the driver's handles through. */
#include "sim/cudart/cudart.h"

/* ---- streams ----------------------------------------------------------------------------------------------------- */

RT_API(cudaError_t, cudaStreamCreateWithPriority, (CUstream * stream, unsigned flags, int priority)) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess ? rt_done(rt_driver.cuStreamCreateWithPriority(stream, flags, priority)) : error;
}
RT_API(cudaError_t, cudaStreamCreateWithFlags, (CUstream * stream, unsigned flags)) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
RT_API(cudaError_t, cudaStreamCreate, (CUstream * stream)) { return cudaStreamCreateWithPriority(stream, 0, 0); }

RT_API(cudaError_t, cudaStreamDestroy, (CUstream stream)) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess ? rt_done(rt_driver.cuStreamDestroy(stream)) : error;
}

RT_API(cudaError_t, cudaStreamSynchronize, (CUstream stream)) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess ? rt_done(rt_driver.cuStreamSynchronize(stream)) : error;
}
RT_API(cudaError_t, cudaStreamSynchronize_ptsz, (CUstream stream)) { return cudaStreamSynchronize(rt_own(stream)); }

RT_API(cudaError_t, cudaStreamQuery, (CUstream stream)) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess ? rt_done(rt_driver.cuStreamQuery(stream)) : error;
}
RT_API(cudaError_t, cudaStreamQuery_ptsz, (CUstream stream)) { return cudaStreamQuery(rt_own(stream)); }

RT_API(cudaError_t, cudaStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags)) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess ? rt_done(rt_driver.cuStreamWaitEvent(stream, event, flags)) : error;
}
RT_API(cudaError_t, cudaStreamWaitEvent_ptsz, (CUstream stream, CUevent event, unsigned flags)) {
  return cudaStreamWaitEvent(rt_own(stream), event, flags);
}

RT_API(cudaError_t, cudaStreamGetFlags, (CUstream stream, unsigned *flags)) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess ? rt_done(rt_driver.cuStreamGetFlags(stream, flags)) : error;
}
RT_API(cudaError_t, cudaStreamGetFlags_ptsz, (CUstream stream, unsigned *flags)) {
  return cudaStreamGetFlags(rt_own(stream), flags);
}

RT_API(cudaError_t, cudaStreamGetPriority, (CUstream stream, int *priority)) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess ? rt_done(rt_driver.cuStreamGetPriority(stream, priority)) : error;
}
RT_API(cudaError_t, cudaStreamGetPriority_ptsz, (CUstream stream, int *priority)) {
  return cudaStreamGetPriority(rt_own(stream), priority);
}

RT_API(cudaError_t, cudaStreamGetId, (CUstream stream, unsigned long long *id)) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess ? rt_done(rt_driver.cuStreamGetId(stream, id)) : error;
}
RT_API(cudaError_t, cudaStreamGetId_ptsz, (CUstream stream, unsigned long long *id)) {
  return cudaStreamGetId(rt_own(stream), id);
}

/* The callback's status is a cudaError_t, which uses the driver's numbers. */
RT_API(cudaError_t, cudaStreamAddCallback, (CUstream stream, CUstreamCallback callback, void *data, unsigned flags)) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess ? rt_done(rt_driver.cuStreamAddCallback(stream, callback, data, flags)) : error;
}
RT_API(cudaError_t, cudaStreamAddCallback_ptsz,
       (CUstream stream, CUstreamCallback callback, void *data, unsigned flags)) {
  return cudaStreamAddCallback(rt_own(stream), callback, data, flags);
}

/* ---- capture ----------------------------------------------------------------------------------------------------- */

RT_API(cudaError_t, cudaStreamBeginCapture, (CUstream stream, int mode)) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess ? rt_done(rt_driver.cuStreamBeginCapture(stream, mode)) : error;
}
RT_API(cudaError_t, cudaStreamBeginCapture_ptsz, (CUstream stream, int mode)) {
  return cudaStreamBeginCapture(rt_own(stream), mode);
}

RT_API(cudaError_t, cudaStreamEndCapture, (CUstream stream, CUgraph *graph)) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess ? rt_done(rt_driver.cuStreamEndCapture(stream, graph)) : error;
}
RT_API(cudaError_t, cudaStreamEndCapture_ptsz, (CUstream stream, CUgraph *graph)) {
  return cudaStreamEndCapture(rt_own(stream), graph);
}

RT_API(cudaError_t, cudaStreamIsCapturing, (CUstream stream, int *status)) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess ? rt_done(rt_driver.cuStreamIsCapturing(stream, status)) : error;
}
RT_API(cudaError_t, cudaStreamIsCapturing_ptsz, (CUstream stream, int *status)) {
  return cudaStreamIsCapturing(rt_own(stream), status);
}

RT_API(cudaError_t, cudaThreadExchangeStreamCaptureMode, (int *mode)) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess ? rt_done(rt_driver.cuThreadExchangeStreamCaptureMode(mode)) : error;
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

RT_API(cudaError_t, cudaEventCreateWithFlags, (CUevent * event, unsigned flags)) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess ? rt_done(rt_driver.cuEventCreate(event, flags)) : error;
}
RT_API(cudaError_t, cudaEventCreate, (CUevent * event)) { return cudaEventCreateWithFlags(event, 0); }

RT_API(cudaError_t, cudaEventDestroy, (CUevent event)) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess ? rt_done(rt_driver.cuEventDestroy(event)) : error;
}

RT_API(cudaError_t, cudaEventRecord, (CUevent event, CUstream stream)) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess ? rt_done(rt_driver.cuEventRecord(event, stream)) : error;
}
RT_API(cudaError_t, cudaEventRecord_ptsz, (CUevent event, CUstream stream)) {
  return cudaEventRecord(event, rt_own(stream));
}

RT_API(cudaError_t, cudaEventRecordWithFlags, (CUevent event, CUstream stream, unsigned flags)) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess ? rt_done(rt_driver.cuEventRecordWithFlags(event, stream, flags)) : error;
}
RT_API(cudaError_t, cudaEventRecordWithFlags_ptsz, (CUevent event, CUstream stream, unsigned flags)) {
  return cudaEventRecordWithFlags(event, rt_own(stream), flags);
}

RT_API(cudaError_t, cudaEventQuery, (CUevent event)) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess ? rt_done(rt_driver.cuEventQuery(event)) : error;
}

RT_API(cudaError_t, cudaEventSynchronize, (CUevent event)) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess ? rt_done(rt_driver.cuEventSynchronize(event)) : error;
}

RT_API(cudaError_t, cudaEventElapsedTime, (float *ms, CUevent start, CUevent end)) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess ? rt_done(rt_driver.cuEventElapsedTime(ms, start, end)) : error;
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

RT_API(cudaError_t, cudaGraphCreate, (CUgraph * graph, unsigned flags)) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess ? rt_done(rt_driver.cuGraphCreate(graph, flags)) : error;
}

RT_API(cudaError_t, cudaGraphDestroy, (CUgraph graph)) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess ? rt_done(rt_driver.cuGraphDestroy(graph)) : error;
}

RT_API(cudaError_t, cudaGraphGetNodes, (CUgraph graph, CUgraphNode *nodes, size_t *count)) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess ? rt_done(rt_driver.cuGraphGetNodes(graph, nodes, count)) : error;
}

RT_API(cudaError_t, cudaGraphInstantiateWithFlags, (CUgraphExec * exec, CUgraph graph, unsigned long long flags)) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess ? rt_done(rt_driver.cuGraphInstantiateWithFlags(exec, graph, flags)) : error;
}
RT_API(cudaError_t, cudaGraphInstantiate, (CUgraphExec * exec, CUgraph graph, unsigned long long flags)) {
  return cudaGraphInstantiateWithFlags(exec, graph, flags);
}

RT_API(cudaError_t, cudaGraphExecDestroy, (CUgraphExec exec)) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess ? rt_done(rt_driver.cuGraphExecDestroy(exec)) : error;
}

RT_API(cudaError_t, cudaGraphUpload, (CUgraphExec exec, CUstream stream)) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess ? rt_done(rt_driver.cuGraphUpload(exec, stream)) : error;
}
RT_API(cudaError_t, cudaGraphUpload_ptsz, (CUgraphExec exec, CUstream stream)) {
  return cudaGraphUpload(exec, rt_own(stream));
}

RT_API(cudaError_t, cudaGraphLaunch, (CUgraphExec exec, CUstream stream)) {
  cudaError_t error = rt_enter();
  return error == cudaSuccess ? rt_done(rt_driver.cuGraphLaunch(exec, stream)) : error;
}
RT_API(cudaError_t, cudaGraphLaunch_ptsz, (CUgraphExec exec, CUstream stream)) {
  return cudaGraphLaunch(exec, rt_own(stream));
}
