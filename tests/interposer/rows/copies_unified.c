/* Copies between unified pointers, single and in batches: the pointers determine the direction. */
#include "rows.h"

enum { HALF = BYTES / 2, HEIGHT = BYTES / PITCH, POINTER = 1 /* CUmemcpy3DOperandType */, ACCESS_IN_STREAM = 1 };

static CUdeviceptr number(const void *at) { return (CUdeviceptr)(uintptr_t)at; }

void row_cuMemcpy(struct rows *r) {
  struct copy in = copy_ready(r), out = copy_ready(r), within = copy_ready(r);
  if (done(r, start(r)->cuMemcpy(in.to, number(in.host_from), BYTES)))
    on_device(r, &in);
  if (done(r, start(r)->cuMemcpy(number(out.host_to), out.from, BYTES)))
    on_host(r, &out);
  if (done(r, work(r)->cuMemcpy(within.to, within.from, BYTES)))
    on_device(r, &within);
}

void row_cuMemcpy_ptds(struct rows *r) {
  struct copy in = copy_ready(r), out = copy_ready(r), within = copy_ready(r);
  if (done(r, start(r)->cuMemcpy_ptds(in.to, number(in.host_from), BYTES)))
    on_device(r, &in);
  if (done(r, start(r)->cuMemcpy_ptds(number(out.host_to), out.from, BYTES)))
    on_host(r, &out);
  if (done(r, work(r)->cuMemcpy_ptds(within.to, within.from, BYTES)))
    on_device(r, &within);
}

void row_cuMemcpyAsync(struct rows *r) {
  struct copy in = copy_ready(r), out = copy_ready(r), within = copy_ready(r);
  CUstream on = stream(r);
  if (done(r, start(r)->cuMemcpyAsync(in.to, number(in.host_from), BYTES, on)))
    on_device(r, &in);
  if (done(r, start(r)->cuMemcpyAsync(number(out.host_to), out.from, BYTES, on)))
    on_host(r, &out);
  if (done(r, work(r)->cuMemcpyAsync(within.to, within.from, BYTES, on)))
    on_device(r, &within);
  capture(r, on);
  done(r, start(r)->cuMemcpyAsync(within.to, within.from, BYTES, on));
  captured(r, on, 1);
}

void row_cuMemcpyAsync_ptsz(struct rows *r) {
  struct copy in = copy_ready(r), out = copy_ready(r), within = copy_ready(r);
  if (done(r, start(r)->cuMemcpyAsync_ptsz(in.to, number(in.host_from), BYTES, NULL)))
    on_device(r, &in);
  if (done(r, start(r)->cuMemcpyAsync_ptsz(number(out.host_to), out.from, BYTES, NULL)))
    on_host(r, &out);
  if (done(r, work(r)->cuMemcpyAsync_ptsz(within.to, within.from, BYTES, NULL)))
    on_device(r, &within);
  capture(r, CU_STREAM_PER_THREAD);
  done(r, start(r)->cuMemcpyAsync_ptsz(within.to, within.from, BYTES, NULL));
  captured(r, CU_STREAM_PER_THREAD, 1);
}

/* Two copies that together equal one. */
struct batch {
  CUdeviceptr to[2], from[2];
  size_t sizes[2], first[1], failed;
  CUmemcpyAttributes how[1];
};

static struct batch batch_of(CUdeviceptr to, CUdeviceptr from) {
  return (struct batch){
      {to, to + HALF}, {from, from + HALF}, {HALF, HALF}, {0}, 0, {{.srcAccessOrder = ACCESS_IN_STREAM}}};
}

/* The first over the link, the second within the device: so the batch is work for the device. */
static struct batch mixed_batch_of(const struct copy *c) {
  struct batch b = batch_of(c->to, c->from);
  b.from[0] = number(c->host_from);
  return b;
}

void row_cuMemcpyBatchAsync(struct rows *r) {
  struct copy in = copy_ready(r), out = copy_ready(r), within = copy_ready(r), mixed = copy_ready(r);
  CUstream on = stream(r);
  struct batch b = batch_of(in.to, number(in.host_from));
  if (done(r, start(r)->cuMemcpyBatchAsync(b.to, b.from, b.sizes, 2, b.how, b.first, 1, &b.failed, on)))
    on_device(r, &in);
  b = batch_of(number(out.host_to), out.from);
  if (done(r, start(r)->cuMemcpyBatchAsync(b.to, b.from, b.sizes, 2, b.how, b.first, 1, &b.failed, on)))
    on_host(r, &out);
  b = batch_of(within.to, within.from);
  if (done(r, work(r)->cuMemcpyBatchAsync(b.to, b.from, b.sizes, 2, b.how, b.first, 1, &b.failed, on)))
    on_device(r, &within);
  b = mixed_batch_of(&mixed);
  if (done(r, work(r)->cuMemcpyBatchAsync(b.to, b.from, b.sizes, 2, b.how, b.first, 1, &b.failed, on)))
    on_device(r, &mixed);
}

void row_cuMemcpyBatchAsync_ptsz(struct rows *r) {
  struct copy in = copy_ready(r), out = copy_ready(r), within = copy_ready(r), mixed = copy_ready(r);
  struct batch b = batch_of(in.to, number(in.host_from));
  if (done(r, start(r)->cuMemcpyBatchAsync_ptsz(b.to, b.from, b.sizes, 2, b.how, b.first, 1, &b.failed, NULL)))
    on_device(r, &in);
  b = batch_of(number(out.host_to), out.from);
  if (done(r, start(r)->cuMemcpyBatchAsync_ptsz(b.to, b.from, b.sizes, 2, b.how, b.first, 1, &b.failed, NULL)))
    on_host(r, &out);
  b = batch_of(within.to, within.from);
  if (done(r, work(r)->cuMemcpyBatchAsync_ptsz(b.to, b.from, b.sizes, 2, b.how, b.first, 1, &b.failed, NULL)))
    on_device(r, &within);
  b = mixed_batch_of(&mixed);
  if (done(r, work(r)->cuMemcpyBatchAsync_ptsz(b.to, b.from, b.sizes, 2, b.how, b.first, 1, &b.failed, NULL)))
    on_device(r, &mixed);
}

void row_cuMemcpyBatchAsync_v2(struct rows *r) {
  struct copy in = copy_ready(r), out = copy_ready(r), within = copy_ready(r), mixed = copy_ready(r);
  CUstream on = stream(r);
  struct batch b = batch_of(in.to, number(in.host_from));
  if (done(r, start(r)->cuMemcpyBatchAsync_v2(b.to, b.from, b.sizes, 2, b.how, b.first, 1, on)))
    on_device(r, &in);
  b = batch_of(number(out.host_to), out.from);
  if (done(r, start(r)->cuMemcpyBatchAsync_v2(b.to, b.from, b.sizes, 2, b.how, b.first, 1, on)))
    on_host(r, &out);
  b = batch_of(within.to, within.from);
  if (done(r, work(r)->cuMemcpyBatchAsync_v2(b.to, b.from, b.sizes, 2, b.how, b.first, 1, on)))
    on_device(r, &within);
  b = mixed_batch_of(&mixed);
  if (done(r, work(r)->cuMemcpyBatchAsync_v2(b.to, b.from, b.sizes, 2, b.how, b.first, 1, on)))
    on_device(r, &mixed);
}

void row_cuMemcpyBatchAsync_v2_ptsz(struct rows *r) {
  struct copy in = copy_ready(r), out = copy_ready(r), within = copy_ready(r), mixed = copy_ready(r);
  struct batch b = batch_of(in.to, number(in.host_from));
  if (done(r, start(r)->cuMemcpyBatchAsync_v2_ptsz(b.to, b.from, b.sizes, 2, b.how, b.first, 1, NULL)))
    on_device(r, &in);
  b = batch_of(number(out.host_to), out.from);
  if (done(r, start(r)->cuMemcpyBatchAsync_v2_ptsz(b.to, b.from, b.sizes, 2, b.how, b.first, 1, NULL)))
    on_host(r, &out);
  b = batch_of(within.to, within.from);
  if (done(r, work(r)->cuMemcpyBatchAsync_v2_ptsz(b.to, b.from, b.sizes, 2, b.how, b.first, 1, NULL)))
    on_device(r, &within);
  b = mixed_batch_of(&mixed);
  if (done(r, work(r)->cuMemcpyBatchAsync_v2_ptsz(b.to, b.from, b.sizes, 2, b.how, b.first, 1, NULL)))
    on_device(r, &mixed);
}

static CUmemcpy3DOperand packed(CUdeviceptr at) { return (CUmemcpy3DOperand){.type = POINTER, .op.ptr = {.ptr = at}}; }

struct boxes {
  CUDA_MEMCPY3D_BATCH_OP box[2];
};

static CUDA_MEMCPY3D_BATCH_OP box_of(CUdeviceptr to, CUdeviceptr from) {
  return (CUDA_MEMCPY3D_BATCH_OP){
      .src = packed(from), .dst = packed(to), .extent = {PITCH, HEIGHT, 1}, .srcAccessOrder = ACCESS_IN_STREAM};
}

static struct boxes mixed_boxes_of(const struct copy *c) {
  struct boxes b = {{box_of(c->to, number(c->host_from)), box_of(c->to + HALF, c->from + HALF)}};
  b.box[0].extent.height = b.box[1].extent.height = HEIGHT / 2;
  return b;
}

void row_cuMemcpy3DBatchAsync(struct rows *r) {
  struct copy in = copy_ready(r), out = copy_ready(r), within = copy_ready(r), mixed = copy_ready(r);
  CUstream on = stream(r);
  size_t failed;
  CUDA_MEMCPY3D_BATCH_OP box = box_of(in.to, number(in.host_from));
  if (done(r, start(r)->cuMemcpy3DBatchAsync(1, &box, &failed, 0, on)))
    on_device(r, &in);
  box = box_of(number(out.host_to), out.from);
  if (done(r, start(r)->cuMemcpy3DBatchAsync(1, &box, &failed, 0, on)))
    on_host(r, &out);
  box = box_of(within.to, within.from);
  if (done(r, work(r)->cuMemcpy3DBatchAsync(1, &box, &failed, 0, on)))
    on_device(r, &within);
  struct boxes b = mixed_boxes_of(&mixed);
  if (done(r, work(r)->cuMemcpy3DBatchAsync(2, b.box, &failed, 0, on)))
    on_device(r, &mixed);
}

void row_cuMemcpy3DBatchAsync_ptsz(struct rows *r) {
  struct copy in = copy_ready(r), out = copy_ready(r), within = copy_ready(r), mixed = copy_ready(r);
  size_t failed;
  CUDA_MEMCPY3D_BATCH_OP box = box_of(in.to, number(in.host_from));
  if (done(r, start(r)->cuMemcpy3DBatchAsync_ptsz(1, &box, &failed, 0, NULL)))
    on_device(r, &in);
  box = box_of(number(out.host_to), out.from);
  if (done(r, start(r)->cuMemcpy3DBatchAsync_ptsz(1, &box, &failed, 0, NULL)))
    on_host(r, &out);
  box = box_of(within.to, within.from);
  if (done(r, work(r)->cuMemcpy3DBatchAsync_ptsz(1, &box, &failed, 0, NULL)))
    on_device(r, &within);
  struct boxes b = mixed_boxes_of(&mixed);
  if (done(r, work(r)->cuMemcpy3DBatchAsync_ptsz(2, b.box, &failed, 0, NULL)))
    on_device(r, &mixed);
}

void row_cuMemcpy3DBatchAsync_v2(struct rows *r) {
  struct copy in = copy_ready(r), out = copy_ready(r), within = copy_ready(r), mixed = copy_ready(r);
  CUstream on = stream(r);
  CUDA_MEMCPY3D_BATCH_OP box = box_of(in.to, number(in.host_from));
  if (done(r, start(r)->cuMemcpy3DBatchAsync_v2(1, &box, 0, on)))
    on_device(r, &in);
  box = box_of(number(out.host_to), out.from);
  if (done(r, start(r)->cuMemcpy3DBatchAsync_v2(1, &box, 0, on)))
    on_host(r, &out);
  box = box_of(within.to, within.from);
  if (done(r, work(r)->cuMemcpy3DBatchAsync_v2(1, &box, 0, on)))
    on_device(r, &within);
  struct boxes b = mixed_boxes_of(&mixed);
  if (done(r, work(r)->cuMemcpy3DBatchAsync_v2(2, b.box, 0, on)))
    on_device(r, &mixed);
}

void row_cuMemcpy3DBatchAsync_v2_ptsz(struct rows *r) {
  struct copy in = copy_ready(r), out = copy_ready(r), within = copy_ready(r), mixed = copy_ready(r);
  CUDA_MEMCPY3D_BATCH_OP box = box_of(in.to, number(in.host_from));
  if (done(r, start(r)->cuMemcpy3DBatchAsync_v2_ptsz(1, &box, 0, NULL)))
    on_device(r, &in);
  box = box_of(number(out.host_to), out.from);
  if (done(r, start(r)->cuMemcpy3DBatchAsync_v2_ptsz(1, &box, 0, NULL)))
    on_host(r, &out);
  box = box_of(within.to, within.from);
  if (done(r, work(r)->cuMemcpy3DBatchAsync_v2_ptsz(1, &box, 0, NULL)))
    on_device(r, &within);
  struct boxes b = mixed_boxes_of(&mixed);
  if (done(r, work(r)->cuMemcpy3DBatchAsync_v2_ptsz(2, b.box, 0, NULL)))
    on_device(r, &mixed);
}

void row_cuMemcpyWithAttributesAsync(struct rows *r) {
  struct copy in = copy_ready(r), out = copy_ready(r), within = copy_ready(r);
  CUstream on = stream(r);
  CUmemcpyAttributes how = {.srcAccessOrder = ACCESS_IN_STREAM};
  if (done(r, start(r)->cuMemcpyWithAttributesAsync(in.to, number(in.host_from), BYTES, &how, on)))
    on_device(r, &in);
  if (done(r, start(r)->cuMemcpyWithAttributesAsync(number(out.host_to), out.from, BYTES, &how, on)))
    on_host(r, &out);
  if (done(r, work(r)->cuMemcpyWithAttributesAsync(within.to, within.from, BYTES, &how, on)))
    on_device(r, &within);
}

void row_cuMemcpyWithAttributesAsync_ptsz(struct rows *r) {
  struct copy in = copy_ready(r), out = copy_ready(r), within = copy_ready(r);
  CUmemcpyAttributes how = {.srcAccessOrder = ACCESS_IN_STREAM};
  if (done(r, start(r)->cuMemcpyWithAttributesAsync_ptsz(in.to, number(in.host_from), BYTES, &how, NULL)))
    on_device(r, &in);
  if (done(r, start(r)->cuMemcpyWithAttributesAsync_ptsz(number(out.host_to), out.from, BYTES, &how, NULL)))
    on_host(r, &out);
  if (done(r, work(r)->cuMemcpyWithAttributesAsync_ptsz(within.to, within.from, BYTES, &how, NULL)))
    on_device(r, &within);
}

void row_cuMemcpy3DWithAttributesAsync(struct rows *r) {
  struct copy in = copy_ready(r), out = copy_ready(r), within = copy_ready(r);
  CUstream on = stream(r);
  CUDA_MEMCPY3D_BATCH_OP box;
  box = box_of(in.to, number(in.host_from));
  if (done(r, start(r)->cuMemcpy3DWithAttributesAsync(&box, 0, on)))
    on_device(r, &in);
  done_with(r, CUDA_ERROR_INVALID_VALUE, start(r)->cuMemcpy3DWithAttributesAsync(&box, 1, on));
  box = box_of(number(out.host_to), out.from);
  if (done(r, start(r)->cuMemcpy3DWithAttributesAsync(&box, 0, on)))
    on_host(r, &out);
  box = box_of(within.to, within.from);
  if (done(r, work(r)->cuMemcpy3DWithAttributesAsync(&box, 0, on)))
    on_device(r, &within);
}

void row_cuMemcpy3DWithAttributesAsync_ptsz(struct rows *r) {
  struct copy in = copy_ready(r), out = copy_ready(r), within = copy_ready(r);
  CUDA_MEMCPY3D_BATCH_OP box;
  box = box_of(in.to, number(in.host_from));
  if (done(r, start(r)->cuMemcpy3DWithAttributesAsync_ptsz(&box, 0, NULL)))
    on_device(r, &in);
  done_with(r, CUDA_ERROR_INVALID_VALUE, start(r)->cuMemcpy3DWithAttributesAsync_ptsz(&box, 1, NULL));
  box = box_of(number(out.host_to), out.from);
  if (done(r, start(r)->cuMemcpy3DWithAttributesAsync_ptsz(&box, 0, NULL)))
    on_host(r, &out);
  box = box_of(within.to, within.from);
  if (done(r, work(r)->cuMemcpy3DWithAttributesAsync_ptsz(&box, 0, NULL)))
    on_device(r, &within);
}
