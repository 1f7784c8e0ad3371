/* Copies of boxes, of unified pointers and in batches. Copies over the link need no lease, copies within the device
 * do. */
#include "rows.h"

enum { HOST = CU_MEMORYTYPE_HOST, DEVICE = CU_MEMORYTYPE_DEVICE, UNIFIED = CU_MEMORYTYPE_UNIFIED };
enum { HEIGHT = BYTES / PITCH, LAYERS = 4 };

static CUdeviceptr number(const void *at) { return (CUdeviceptr)(uintptr_t)at; }

static CUDA_MEMCPY2D plane(CUmemorytype from, const void *host_from, CUdeviceptr device_from, CUmemorytype to,
                           void *host_to, CUdeviceptr device_to) {
  return (CUDA_MEMCPY2D){.srcMemoryType = from,
                         .srcHost = host_from,
                         .srcDevice = device_from,
                         .srcPitch = PITCH,
                         .dstMemoryType = to,
                         .dstHost = host_to,
                         .dstDevice = device_to,
                         .dstPitch = PITCH,
                         .WidthInBytes = PITCH,
                         .Height = HEIGHT};
}

static CUDA_MEMCPY2D_v1 plane_v1(CUmemorytype from, const void *host_from, CUdeviceptr device_from, CUmemorytype to,
                                 void *host_to, CUdeviceptr device_to) {
  return (CUDA_MEMCPY2D_v1){.srcMemoryType = from,
                            .srcHost = host_from,
                            .srcDevice = (CUdeviceptr_v1)device_from,
                            .srcPitch = PITCH,
                            .dstMemoryType = to,
                            .dstHost = host_to,
                            .dstDevice = (CUdeviceptr_v1)device_to,
                            .dstPitch = PITCH,
                            .WidthInBytes = PITCH,
                            .Height = HEIGHT};
}

static CUDA_MEMCPY3D box(CUmemorytype from, const void *host_from, CUdeviceptr device_from, CUmemorytype to,
                         void *host_to, CUdeviceptr device_to) {
  return (CUDA_MEMCPY3D){.srcMemoryType = from,
                         .srcHost = host_from,
                         .srcDevice = device_from,
                         .srcPitch = PITCH,
                         .srcHeight = HEIGHT / LAYERS,
                         .dstMemoryType = to,
                         .dstHost = host_to,
                         .dstDevice = device_to,
                         .dstPitch = PITCH,
                         .dstHeight = HEIGHT / LAYERS,
                         .WidthInBytes = PITCH,
                         .Height = HEIGHT / LAYERS,
                         .Depth = LAYERS};
}

static CUDA_MEMCPY3D_v1 box_v1(CUmemorytype from, const void *host_from, CUdeviceptr device_from, CUmemorytype to,
                               void *host_to, CUdeviceptr device_to) {
  return (CUDA_MEMCPY3D_v1){.srcMemoryType = from,
                            .srcHost = host_from,
                            .srcDevice = (CUdeviceptr_v1)device_from,
                            .srcPitch = PITCH,
                            .srcHeight = HEIGHT / LAYERS,
                            .dstMemoryType = to,
                            .dstHost = host_to,
                            .dstDevice = (CUdeviceptr_v1)device_to,
                            .dstPitch = PITCH,
                            .dstHeight = HEIGHT / LAYERS,
                            .WidthInBytes = PITCH,
                            .Height = HEIGHT / LAYERS,
                            .Depth = LAYERS};
}

static CUDA_MEMCPY3D_PEER box_peer(CUmemorytype from, const void *host_from, CUdeviceptr device_from, CUmemorytype to,
                                   void *host_to, CUdeviceptr device_to, CUcontext ctx) {
  return (CUDA_MEMCPY3D_PEER){.srcMemoryType = from,
                              .srcHost = host_from,
                              .srcDevice = device_from,
                              .srcPitch = PITCH,
                              .srcHeight = HEIGHT / LAYERS,
                              .srcContext = ctx,
                              .dstMemoryType = to,
                              .dstHost = host_to,
                              .dstDevice = device_to,
                              .dstPitch = PITCH,
                              .dstHeight = HEIGHT / LAYERS,
                              .dstContext = ctx,
                              .WidthInBytes = PITCH,
                              .Height = HEIGHT / LAYERS,
                              .Depth = LAYERS};
}

void row_cuMemcpy2D(struct rows *r) {
  struct copy in = copy_ready(r), out = copy_ready(r), within = copy_ready(r);
  CUDA_MEMCPY2D_v1 how = plane_v1(HOST, in.host_from, 0, DEVICE, NULL, in.to);
  if (done(r, start(r)->cuMemcpy2D(&how)))
    on_device(r, &in);
  how = plane_v1(DEVICE, NULL, out.from, HOST, out.host_to, 0);
  if (done(r, start(r)->cuMemcpy2D(&how)))
    on_host(r, &out);
  how = plane_v1(DEVICE, NULL, within.from, DEVICE, NULL, within.to);
  if (done(r, work(r)->cuMemcpy2D(&how)))
    on_device(r, &within);
}

void row_cuMemcpy2DUnaligned(struct rows *r) {
  struct copy in = copy_ready(r), out = copy_ready(r), within = copy_ready(r);
  CUDA_MEMCPY2D_v1 how = plane_v1(HOST, in.host_from, 0, DEVICE, NULL, in.to);
  if (done(r, start(r)->cuMemcpy2DUnaligned(&how)))
    on_device(r, &in);
  how = plane_v1(DEVICE, NULL, out.from, HOST, out.host_to, 0);
  if (done(r, start(r)->cuMemcpy2DUnaligned(&how)))
    on_host(r, &out);
  how = plane_v1(DEVICE, NULL, within.from, DEVICE, NULL, within.to);
  if (done(r, work(r)->cuMemcpy2DUnaligned(&how)))
    on_device(r, &within);
}

void row_cuMemcpy2DAsync(struct rows *r) {
  struct copy in = copy_ready(r), out = copy_ready(r), within = copy_ready(r);
  CUstream on = stream(r);
  CUDA_MEMCPY2D_v1 how = plane_v1(HOST, in.host_from, 0, DEVICE, NULL, in.to);
  if (done(r, start(r)->cuMemcpy2DAsync(&how, on)))
    on_device(r, &in);
  how = plane_v1(DEVICE, NULL, out.from, HOST, out.host_to, 0);
  if (done(r, start(r)->cuMemcpy2DAsync(&how, on)))
    on_host(r, &out);
  how = plane_v1(DEVICE, NULL, within.from, DEVICE, NULL, within.to);
  if (done(r, work(r)->cuMemcpy2DAsync(&how, on)))
    on_device(r, &within);
  capture(r, on);
  done(r, start(r)->cuMemcpy2DAsync(&how, on));
  captured(r, on, 1);
}

void row_cuMemcpy2D_v2(struct rows *r) {
  struct copy in = copy_ready(r), out = copy_ready(r), within = copy_ready(r);
  CUDA_MEMCPY2D how = plane(HOST, in.host_from, 0, DEVICE, NULL, in.to);
  if (done(r, start(r)->cuMemcpy2D_v2(&how)))
    on_device(r, &in);
  how = plane(DEVICE, NULL, out.from, HOST, out.host_to, 0);
  if (done(r, start(r)->cuMemcpy2D_v2(&how)))
    on_host(r, &out);
  how = plane(DEVICE, NULL, within.from, DEVICE, NULL, within.to);
  if (done(r, work(r)->cuMemcpy2D_v2(&how)))
    on_device(r, &within);
  how = plane(UNIFIED, NULL, number(in.host_from), UNIFIED, NULL, out.to);
  if (done(r, start(r)->cuMemcpy2D_v2(&how)))
    on_device(r, &out);
}

void row_cuMemcpy2D_v2_ptds(struct rows *r) {
  struct copy in = copy_ready(r), out = copy_ready(r), within = copy_ready(r);
  CUDA_MEMCPY2D how = plane(HOST, in.host_from, 0, DEVICE, NULL, in.to);
  if (done(r, start(r)->cuMemcpy2D_v2_ptds(&how)))
    on_device(r, &in);
  how = plane(DEVICE, NULL, out.from, HOST, out.host_to, 0);
  if (done(r, start(r)->cuMemcpy2D_v2_ptds(&how)))
    on_host(r, &out);
  how = plane(DEVICE, NULL, within.from, DEVICE, NULL, within.to);
  if (done(r, work(r)->cuMemcpy2D_v2_ptds(&how)))
    on_device(r, &within);
  how = plane(UNIFIED, NULL, number(in.host_from), UNIFIED, NULL, out.to);
  if (done(r, start(r)->cuMemcpy2D_v2_ptds(&how)))
    on_device(r, &out);
}

void row_cuMemcpy2DUnaligned_v2(struct rows *r) {
  struct copy in = copy_ready(r), out = copy_ready(r), within = copy_ready(r);
  CUDA_MEMCPY2D how = plane(HOST, in.host_from, 0, DEVICE, NULL, in.to);
  if (done(r, start(r)->cuMemcpy2DUnaligned_v2(&how)))
    on_device(r, &in);
  how = plane(DEVICE, NULL, out.from, HOST, out.host_to, 0);
  if (done(r, start(r)->cuMemcpy2DUnaligned_v2(&how)))
    on_host(r, &out);
  how = plane(DEVICE, NULL, within.from, DEVICE, NULL, within.to);
  if (done(r, work(r)->cuMemcpy2DUnaligned_v2(&how)))
    on_device(r, &within);
  how = plane(UNIFIED, NULL, number(in.host_from), UNIFIED, NULL, out.to);
  if (done(r, start(r)->cuMemcpy2DUnaligned_v2(&how)))
    on_device(r, &out);
}

void row_cuMemcpy2DUnaligned_v2_ptds(struct rows *r) {
  struct copy in = copy_ready(r), out = copy_ready(r), within = copy_ready(r);
  CUDA_MEMCPY2D how = plane(HOST, in.host_from, 0, DEVICE, NULL, in.to);
  if (done(r, start(r)->cuMemcpy2DUnaligned_v2_ptds(&how)))
    on_device(r, &in);
  how = plane(DEVICE, NULL, out.from, HOST, out.host_to, 0);
  if (done(r, start(r)->cuMemcpy2DUnaligned_v2_ptds(&how)))
    on_host(r, &out);
  how = plane(DEVICE, NULL, within.from, DEVICE, NULL, within.to);
  if (done(r, work(r)->cuMemcpy2DUnaligned_v2_ptds(&how)))
    on_device(r, &within);
  how = plane(UNIFIED, NULL, number(in.host_from), UNIFIED, NULL, out.to);
  if (done(r, start(r)->cuMemcpy2DUnaligned_v2_ptds(&how)))
    on_device(r, &out);
}

void row_cuMemcpy2DAsync_v2(struct rows *r) {
  struct copy in = copy_ready(r), out = copy_ready(r), within = copy_ready(r);
  CUstream on = stream(r);
  CUDA_MEMCPY2D how = plane(HOST, in.host_from, 0, DEVICE, NULL, in.to);
  if (done(r, start(r)->cuMemcpy2DAsync_v2(&how, on)))
    on_device(r, &in);
  how = plane(DEVICE, NULL, out.from, HOST, out.host_to, 0);
  if (done(r, start(r)->cuMemcpy2DAsync_v2(&how, on)))
    on_host(r, &out);
  how = plane(DEVICE, NULL, within.from, DEVICE, NULL, within.to);
  if (done(r, work(r)->cuMemcpy2DAsync_v2(&how, on)))
    on_device(r, &within);
  how = plane(UNIFIED, NULL, number(in.host_from), UNIFIED, NULL, out.to);
  if (done(r, start(r)->cuMemcpy2DAsync_v2(&how, on)))
    on_device(r, &out);
  capture(r, on);
  done(r, start(r)->cuMemcpy2DAsync_v2(&how, on));
  captured(r, on, 1);
}

void row_cuMemcpy2DAsync_v2_ptsz(struct rows *r) {
  struct copy in = copy_ready(r), out = copy_ready(r), within = copy_ready(r);
  CUDA_MEMCPY2D how = plane(HOST, in.host_from, 0, DEVICE, NULL, in.to);
  if (done(r, start(r)->cuMemcpy2DAsync_v2_ptsz(&how, NULL)))
    on_device(r, &in);
  how = plane(DEVICE, NULL, out.from, HOST, out.host_to, 0);
  if (done(r, start(r)->cuMemcpy2DAsync_v2_ptsz(&how, NULL)))
    on_host(r, &out);
  how = plane(DEVICE, NULL, within.from, DEVICE, NULL, within.to);
  if (done(r, work(r)->cuMemcpy2DAsync_v2_ptsz(&how, NULL)))
    on_device(r, &within);
  how = plane(UNIFIED, NULL, number(in.host_from), UNIFIED, NULL, out.to);
  if (done(r, start(r)->cuMemcpy2DAsync_v2_ptsz(&how, NULL)))
    on_device(r, &out);
  capture(r, CU_STREAM_PER_THREAD);
  done(r, start(r)->cuMemcpy2DAsync_v2_ptsz(&how, NULL));
  captured(r, CU_STREAM_PER_THREAD, 1);
}

void row_cuMemcpy3D(struct rows *r) {
  struct copy in = copy_ready(r), out = copy_ready(r), within = copy_ready(r);
  CUDA_MEMCPY3D_v1 how = box_v1(HOST, in.host_from, 0, DEVICE, NULL, in.to);
  if (done(r, start(r)->cuMemcpy3D(&how)))
    on_device(r, &in);
  how = box_v1(DEVICE, NULL, out.from, HOST, out.host_to, 0);
  if (done(r, start(r)->cuMemcpy3D(&how)))
    on_host(r, &out);
  how = box_v1(DEVICE, NULL, within.from, DEVICE, NULL, within.to);
  if (done(r, work(r)->cuMemcpy3D(&how)))
    on_device(r, &within);
}

void row_cuMemcpy3DAsync(struct rows *r) {
  struct copy in = copy_ready(r), out = copy_ready(r), within = copy_ready(r);
  CUstream on = stream(r);
  CUDA_MEMCPY3D_v1 how = box_v1(HOST, in.host_from, 0, DEVICE, NULL, in.to);
  if (done(r, start(r)->cuMemcpy3DAsync(&how, on)))
    on_device(r, &in);
  how = box_v1(DEVICE, NULL, out.from, HOST, out.host_to, 0);
  if (done(r, start(r)->cuMemcpy3DAsync(&how, on)))
    on_host(r, &out);
  how = box_v1(DEVICE, NULL, within.from, DEVICE, NULL, within.to);
  if (done(r, work(r)->cuMemcpy3DAsync(&how, on)))
    on_device(r, &within);
  capture(r, on);
  done(r, start(r)->cuMemcpy3DAsync(&how, on));
  captured(r, on, 1);
}

void row_cuMemcpy3D_v2(struct rows *r) {
  struct copy in = copy_ready(r), out = copy_ready(r), within = copy_ready(r);
  CUDA_MEMCPY3D how = box(HOST, in.host_from, 0, DEVICE, NULL, in.to);
  if (done(r, start(r)->cuMemcpy3D_v2(&how)))
    on_device(r, &in);
  how = box(DEVICE, NULL, out.from, HOST, out.host_to, 0);
  if (done(r, start(r)->cuMemcpy3D_v2(&how)))
    on_host(r, &out);
  how = box(DEVICE, NULL, within.from, DEVICE, NULL, within.to);
  if (done(r, work(r)->cuMemcpy3D_v2(&how)))
    on_device(r, &within);
  how = box(UNIFIED, NULL, number(in.host_from), UNIFIED, NULL, out.to);
  if (done(r, start(r)->cuMemcpy3D_v2(&how)))
    on_device(r, &out);
}

void row_cuMemcpy3D_v2_ptds(struct rows *r) {
  struct copy in = copy_ready(r), out = copy_ready(r), within = copy_ready(r);
  CUDA_MEMCPY3D how = box(HOST, in.host_from, 0, DEVICE, NULL, in.to);
  if (done(r, start(r)->cuMemcpy3D_v2_ptds(&how)))
    on_device(r, &in);
  how = box(DEVICE, NULL, out.from, HOST, out.host_to, 0);
  if (done(r, start(r)->cuMemcpy3D_v2_ptds(&how)))
    on_host(r, &out);
  how = box(DEVICE, NULL, within.from, DEVICE, NULL, within.to);
  if (done(r, work(r)->cuMemcpy3D_v2_ptds(&how)))
    on_device(r, &within);
  how = box(UNIFIED, NULL, number(in.host_from), UNIFIED, NULL, out.to);
  if (done(r, start(r)->cuMemcpy3D_v2_ptds(&how)))
    on_device(r, &out);
}

void row_cuMemcpy3DAsync_v2(struct rows *r) {
  struct copy in = copy_ready(r), out = copy_ready(r), within = copy_ready(r);
  CUstream on = stream(r);
  CUDA_MEMCPY3D how = box(HOST, in.host_from, 0, DEVICE, NULL, in.to);
  if (done(r, start(r)->cuMemcpy3DAsync_v2(&how, on)))
    on_device(r, &in);
  how = box(DEVICE, NULL, out.from, HOST, out.host_to, 0);
  if (done(r, start(r)->cuMemcpy3DAsync_v2(&how, on)))
    on_host(r, &out);
  how = box(DEVICE, NULL, within.from, DEVICE, NULL, within.to);
  if (done(r, work(r)->cuMemcpy3DAsync_v2(&how, on)))
    on_device(r, &within);
  how = box(UNIFIED, NULL, number(in.host_from), UNIFIED, NULL, out.to);
  if (done(r, start(r)->cuMemcpy3DAsync_v2(&how, on)))
    on_device(r, &out);
  capture(r, on);
  done(r, start(r)->cuMemcpy3DAsync_v2(&how, on));
  captured(r, on, 1);
}

void row_cuMemcpy3DAsync_v2_ptsz(struct rows *r) {
  struct copy in = copy_ready(r), out = copy_ready(r), within = copy_ready(r);
  CUDA_MEMCPY3D how = box(HOST, in.host_from, 0, DEVICE, NULL, in.to);
  if (done(r, start(r)->cuMemcpy3DAsync_v2_ptsz(&how, NULL)))
    on_device(r, &in);
  how = box(DEVICE, NULL, out.from, HOST, out.host_to, 0);
  if (done(r, start(r)->cuMemcpy3DAsync_v2_ptsz(&how, NULL)))
    on_host(r, &out);
  how = box(DEVICE, NULL, within.from, DEVICE, NULL, within.to);
  if (done(r, work(r)->cuMemcpy3DAsync_v2_ptsz(&how, NULL)))
    on_device(r, &within);
  how = box(UNIFIED, NULL, number(in.host_from), UNIFIED, NULL, out.to);
  if (done(r, start(r)->cuMemcpy3DAsync_v2_ptsz(&how, NULL)))
    on_device(r, &out);
  capture(r, CU_STREAM_PER_THREAD);
  done(r, start(r)->cuMemcpy3DAsync_v2_ptsz(&how, NULL));
  captured(r, CU_STREAM_PER_THREAD, 1);
}

void row_cuMemcpy3DPeer(struct rows *r) {
  struct copy in = copy_ready(r), out = copy_ready(r), within = copy_ready(r);
  CUDA_MEMCPY3D_PEER how = box_peer(HOST, in.host_from, 0, DEVICE, NULL, in.to, r->ctx);
  if (done(r, start(r)->cuMemcpy3DPeer(&how)))
    on_device(r, &in);
  how = box_peer(DEVICE, NULL, out.from, HOST, out.host_to, 0, r->ctx);
  if (done(r, start(r)->cuMemcpy3DPeer(&how)))
    on_host(r, &out);
  how = box_peer(DEVICE, NULL, within.from, DEVICE, NULL, within.to, r->ctx);
  if (done(r, work(r)->cuMemcpy3DPeer(&how)))
    on_device(r, &within);
  how = box_peer(UNIFIED, NULL, number(in.host_from), UNIFIED, NULL, out.to, r->ctx);
  if (done(r, start(r)->cuMemcpy3DPeer(&how)))
    on_device(r, &out);
}

void row_cuMemcpy3DPeer_ptds(struct rows *r) {
  struct copy in = copy_ready(r), out = copy_ready(r), within = copy_ready(r);
  CUDA_MEMCPY3D_PEER how = box_peer(HOST, in.host_from, 0, DEVICE, NULL, in.to, r->ctx);
  if (done(r, start(r)->cuMemcpy3DPeer_ptds(&how)))
    on_device(r, &in);
  how = box_peer(DEVICE, NULL, out.from, HOST, out.host_to, 0, r->ctx);
  if (done(r, start(r)->cuMemcpy3DPeer_ptds(&how)))
    on_host(r, &out);
  how = box_peer(DEVICE, NULL, within.from, DEVICE, NULL, within.to, r->ctx);
  if (done(r, work(r)->cuMemcpy3DPeer_ptds(&how)))
    on_device(r, &within);
  how = box_peer(UNIFIED, NULL, number(in.host_from), UNIFIED, NULL, out.to, r->ctx);
  if (done(r, start(r)->cuMemcpy3DPeer_ptds(&how)))
    on_device(r, &out);
}

void row_cuMemcpy3DPeerAsync(struct rows *r) {
  struct copy in = copy_ready(r), out = copy_ready(r), within = copy_ready(r);
  CUstream on = stream(r);
  CUDA_MEMCPY3D_PEER how = box_peer(HOST, in.host_from, 0, DEVICE, NULL, in.to, r->ctx);
  if (done(r, start(r)->cuMemcpy3DPeerAsync(&how, on)))
    on_device(r, &in);
  how = box_peer(DEVICE, NULL, out.from, HOST, out.host_to, 0, r->ctx);
  if (done(r, start(r)->cuMemcpy3DPeerAsync(&how, on)))
    on_host(r, &out);
  how = box_peer(DEVICE, NULL, within.from, DEVICE, NULL, within.to, r->ctx);
  if (done(r, work(r)->cuMemcpy3DPeerAsync(&how, on)))
    on_device(r, &within);
  how = box_peer(UNIFIED, NULL, number(in.host_from), UNIFIED, NULL, out.to, r->ctx);
  if (done(r, start(r)->cuMemcpy3DPeerAsync(&how, on)))
    on_device(r, &out);
  capture(r, on);
  done(r, start(r)->cuMemcpy3DPeerAsync(&how, on));
  captured(r, on, 1);
}

void row_cuMemcpy3DPeerAsync_ptsz(struct rows *r) {
  struct copy in = copy_ready(r), out = copy_ready(r), within = copy_ready(r);
  CUDA_MEMCPY3D_PEER how = box_peer(HOST, in.host_from, 0, DEVICE, NULL, in.to, r->ctx);
  if (done(r, start(r)->cuMemcpy3DPeerAsync_ptsz(&how, NULL)))
    on_device(r, &in);
  how = box_peer(DEVICE, NULL, out.from, HOST, out.host_to, 0, r->ctx);
  if (done(r, start(r)->cuMemcpy3DPeerAsync_ptsz(&how, NULL)))
    on_host(r, &out);
  how = box_peer(DEVICE, NULL, within.from, DEVICE, NULL, within.to, r->ctx);
  if (done(r, work(r)->cuMemcpy3DPeerAsync_ptsz(&how, NULL)))
    on_device(r, &within);
  how = box_peer(UNIFIED, NULL, number(in.host_from), UNIFIED, NULL, out.to, r->ctx);
  if (done(r, start(r)->cuMemcpy3DPeerAsync_ptsz(&how, NULL)))
    on_device(r, &out);
  capture(r, CU_STREAM_PER_THREAD);
  done(r, start(r)->cuMemcpy3DPeerAsync_ptsz(&how, NULL));
  captured(r, CU_STREAM_PER_THREAD, 1);
}
