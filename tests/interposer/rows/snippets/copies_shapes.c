/* Copies of planes and boxes: those over the link need no lease, those within the device do (copies.c). */
#include "rows.h"

enum { HEIGHT = BYTES / PITCH, LAYERS = 4, POINTER = 1 /* CUmemcpy3DOperandType */ };

/* The two ends of a copy. */
struct ends {
  CUmemorytype from, to;
  const void *host_from;
  void *host_to;
  CUdeviceptr device_from, device_to;
};

static struct ends to_device(const struct copy *c) {
  return (struct ends){
      .from = CU_MEMORYTYPE_HOST, .host_from = c->host_from, .to = CU_MEMORYTYPE_DEVICE, .device_to = c->to};
}

static struct ends to_host(const struct copy *c) {
  return (struct ends){
      .from = CU_MEMORYTYPE_DEVICE, .device_from = c->from, .to = CU_MEMORYTYPE_HOST, .host_to = c->host_to};
}

static struct ends within_device(const struct copy *c) {
  return (struct ends){
      .from = CU_MEMORYTYPE_DEVICE, .device_from = c->from, .to = CU_MEMORYTYPE_DEVICE, .device_to = c->to};
}

/* Their pointers determine the direction: to the device. */
static struct ends unified(const struct copy *c) {
  return (struct ends){.from = CU_MEMORYTYPE_UNIFIED,
                       .device_from = number(c->host_from),
                       .to = CU_MEMORYTYPE_UNIFIED,
                       .device_to = c->to};
}

static CUDA_MEMCPY2D plane(struct ends e) {
  return (CUDA_MEMCPY2D){.srcMemoryType = e.from,
                         .srcHost = e.host_from,
                         .srcDevice = e.device_from,
                         .srcPitch = PITCH,
                         .dstMemoryType = e.to,
                         .dstHost = e.host_to,
                         .dstDevice = e.device_to,
                         .dstPitch = PITCH,
                         .WidthInBytes = PITCH,
                         .Height = HEIGHT};
}

static CUDA_MEMCPY3D box(struct ends e) {
  return (CUDA_MEMCPY3D){.srcMemoryType = e.from,
                         .srcHost = e.host_from,
                         .srcDevice = e.device_from,
                         .srcPitch = PITCH,
                         .srcHeight = HEIGHT / LAYERS,
                         .dstMemoryType = e.to,
                         .dstHost = e.host_to,
                         .dstDevice = e.device_to,
                         .dstPitch = PITCH,
                         .dstHeight = HEIGHT / LAYERS,
                         .WidthInBytes = PITCH,
                         .Height = HEIGHT / LAYERS,
                         .Depth = LAYERS};
}

static CUDA_MEMCPY3D_PEER box_peer(const struct rows *r, struct ends e) {
  CUDA_MEMCPY3D b = box(e);
  return (CUDA_MEMCPY3D_PEER){.srcMemoryType = b.srcMemoryType,
                              .srcHost = b.srcHost,
                              .srcDevice = b.srcDevice,
                              .srcPitch = b.srcPitch,
                              .srcHeight = b.srcHeight,
                              .srcContext = r->ctx,
                              .dstMemoryType = b.dstMemoryType,
                              .dstHost = b.dstHost,
                              .dstDevice = b.dstDevice,
                              .dstPitch = b.dstPitch,
                              .dstHeight = b.dstHeight,
                              .dstContext = r->ctx,
                              .WidthInBytes = b.WidthInBytes,
                              .Height = b.Height,
                              .Depth = b.Depth};
}

void row_cuMemcpy2DAsync_v2(struct rows *r) {
  struct copy in = copy_ready(r), out = copy_ready(r), within = copy_ready(r);
  CUDA_MEMCPY2D how = plane(to_device(&in));
  if (done(r, start(r)->cuMemcpy2DAsync_v2(&how, given(r))))
    on_device(r, &in);
  how = plane(to_host(&out));
  if (done(r, start(r)->cuMemcpy2DAsync_v2(&how, given(r))))
    on_host(r, &out);
  how = plane(within_device(&within));
  if (done(r, work(r)->cuMemcpy2DAsync_v2(&how, given(r))))
    on_device(r, &within);
  if (!r->row->narrow) {
    how = plane(unified(&out));
    if (done(r, start(r)->cuMemcpy2DAsync_v2(&how, given(r))))
      on_device(r, &out);
  }
  if (captured_too(r)) {
    done(r, start(r)->cuMemcpy2DAsync_v2(&how, given(r)));
    captured(r, stream(r), 1);
  }
}

void row_cuMemcpy3DAsync_v2(struct rows *r) {
  struct copy in = copy_ready(r), out = copy_ready(r), within = copy_ready(r);
  CUDA_MEMCPY3D how = box(to_device(&in));
  if (done(r, start(r)->cuMemcpy3DAsync_v2(&how, given(r))))
    on_device(r, &in);
  how = box(to_host(&out));
  if (done(r, start(r)->cuMemcpy3DAsync_v2(&how, given(r))))
    on_host(r, &out);
  how = box(within_device(&within));
  if (done(r, work(r)->cuMemcpy3DAsync_v2(&how, given(r))))
    on_device(r, &within);
  if (!r->row->narrow) {
    how = box(unified(&out));
    if (done(r, start(r)->cuMemcpy3DAsync_v2(&how, given(r))))
      on_device(r, &out);
  }
  if (captured_too(r)) {
    done(r, start(r)->cuMemcpy3DAsync_v2(&how, given(r)));
    captured(r, stream(r), 1);
  }
}

void row_cuMemcpy3DPeerAsync(struct rows *r) {
  struct copy in = copy_ready(r), out = copy_ready(r), within = copy_ready(r);
  CUDA_MEMCPY3D_PEER how = box_peer(r, to_device(&in));
  if (done(r, start(r)->cuMemcpy3DPeerAsync(&how, given(r))))
    on_device(r, &in);
  how = box_peer(r, to_host(&out));
  if (done(r, start(r)->cuMemcpy3DPeerAsync(&how, given(r))))
    on_host(r, &out);
  how = box_peer(r, within_device(&within));
  if (done(r, work(r)->cuMemcpy3DPeerAsync(&how, given(r))))
    on_device(r, &within);
  how = box_peer(r, unified(&out));
  if (done(r, start(r)->cuMemcpy3DPeerAsync(&how, given(r))))
    on_device(r, &out);
  if (captured_too(r)) {
    done(r, start(r)->cuMemcpy3DPeerAsync(&how, given(r)));
    captured(r, stream(r), 1);
  }
}

/* ---- operands: their pointers determine the direction ---- */

static CUmemcpy3DOperand packed(CUdeviceptr at) { return (CUmemcpy3DOperand){.type = POINTER, .op.ptr = {.ptr = at}}; }

static CUDA_MEMCPY3D_BATCH_OP box_of(CUdeviceptr to, CUdeviceptr from, unsigned height) {
  return (CUDA_MEMCPY3D_BATCH_OP){
      .src = packed(from), .dst = packed(to), .extent = {PITCH, height, 1}, .srcAccessOrder = ACCESS_IN_STREAM};
}

void row_cuMemcpy3DBatchAsync(struct rows *r) {
  struct copy in = copy_ready(r), out = copy_ready(r), within = copy_ready(r), mixed = copy_ready(r);
  size_t failed;
  CUDA_MEMCPY3D_BATCH_OP one = box_of(in.to, number(in.host_from), HEIGHT);
  if (done(r, start(r)->cuMemcpy3DBatchAsync(1, &one, &failed, 0, given(r))))
    on_device(r, &in);
  one = box_of(number(out.host_to), out.from, HEIGHT);
  if (done(r, start(r)->cuMemcpy3DBatchAsync(1, &one, &failed, 0, given(r))))
    on_host(r, &out);
  one = box_of(within.to, within.from, HEIGHT);
  if (done(r, work(r)->cuMemcpy3DBatchAsync(1, &one, &failed, 0, given(r))))
    on_device(r, &within);
  /* the first over the link, the second within the device: so the batch is work for the device */
  CUDA_MEMCPY3D_BATCH_OP two[] = {box_of(mixed.to, number(mixed.host_from), HEIGHT / 2),
                                  box_of(mixed.to + HALF, mixed.from + HALF, HEIGHT / 2)};
  if (done(r, work(r)->cuMemcpy3DBatchAsync(2, two, &failed, 0, given(r))))
    on_device(r, &mixed);
}

void row_cuMemcpy3DWithAttributesAsync(struct rows *r) {
  struct copy in = copy_ready(r), out = copy_ready(r), within = copy_ready(r);
  CUDA_MEMCPY3D_BATCH_OP one = box_of(in.to, number(in.host_from), HEIGHT);
  if (done(r, start(r)->cuMemcpy3DWithAttributesAsync(&one, 0, given(r))))
    on_device(r, &in);
  done_with(r, CUDA_ERROR_INVALID_VALUE, start(r)->cuMemcpy3DWithAttributesAsync(&one, 1, given(r)));
  one = box_of(number(out.host_to), out.from, HEIGHT);
  if (done(r, start(r)->cuMemcpy3DWithAttributesAsync(&one, 0, given(r))))
    on_host(r, &out);
  one = box_of(within.to, within.from, HEIGHT);
  if (done(r, work(r)->cuMemcpy3DWithAttributesAsync(&one, 0, given(r))))
    on_device(r, &within);
}
