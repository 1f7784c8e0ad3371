/* Copies within the device: they use its memory bandwidth, so they need a lease as kernels do. */
#include "rows.h"

void row_cuMemcpyDtoD(struct rows *r) {
  struct copy c = copy_ready(r);
  if (done(r, work(r)->cuMemcpyDtoD(c.to, c.from, BYTES)))
    on_device(r, &c);
}

void row_cuMemcpyDtoD_v2(struct rows *r) {
  struct copy c = copy_ready(r);
  if (done(r, work(r)->cuMemcpyDtoD_v2(c.to, c.from, BYTES)))
    on_device(r, &c);
}

void row_cuMemcpyDtoD_v2_ptds(struct rows *r) {
  struct copy c = copy_ready(r);
  if (done(r, work(r)->cuMemcpyDtoD_v2_ptds(c.to, c.from, BYTES)))
    on_device(r, &c);
}

void row_cuMemcpyDtoDAsync(struct rows *r) {
  struct copy c = copy_ready(r);
  CUstream on = stream(r);
  if (done(r, work(r)->cuMemcpyDtoDAsync(c.to, c.from, BYTES, on)))
    on_device(r, &c);
  capture(r, on);
  done(r, start(r)->cuMemcpyDtoDAsync(c.to, c.from, BYTES, on));
  captured(r, on, 1);
}

void row_cuMemcpyDtoDAsync_v2(struct rows *r) {
  struct copy c = copy_ready(r);
  CUstream on = stream(r);
  if (done(r, work(r)->cuMemcpyDtoDAsync_v2(c.to, c.from, BYTES, on)))
    on_device(r, &c);
  capture(r, on);
  done(r, start(r)->cuMemcpyDtoDAsync_v2(c.to, c.from, BYTES, on));
  captured(r, on, 1);
}

void row_cuMemcpyDtoDAsync_v2_ptsz(struct rows *r) {
  struct copy c = copy_ready(r);
  if (done(r, work(r)->cuMemcpyDtoDAsync_v2_ptsz(c.to, c.from, BYTES, NULL)))
    on_device(r, &c);
  capture(r, CU_STREAM_PER_THREAD);
  done(r, start(r)->cuMemcpyDtoDAsync_v2_ptsz(c.to, c.from, BYTES, NULL));
  captured(r, CU_STREAM_PER_THREAD, 1);
}

void row_cuMemcpyDtoA(struct rows *r) {
  struct copy c = copy_ready(r);
  if (done(r, work(r)->cuMemcpyDtoA(c.array_to, 0, c.from, BYTES)))
    in_array(r, &c);
}

void row_cuMemcpyDtoA_v2(struct rows *r) {
  struct copy c = copy_ready(r);
  if (done(r, work(r)->cuMemcpyDtoA_v2(c.array_to, 0, c.from, BYTES)))
    in_array(r, &c);
}

void row_cuMemcpyDtoA_v2_ptds(struct rows *r) {
  struct copy c = copy_ready(r);
  if (done(r, work(r)->cuMemcpyDtoA_v2_ptds(c.array_to, 0, c.from, BYTES)))
    in_array(r, &c);
}

void row_cuMemcpyAtoD(struct rows *r) {
  struct copy c = copy_ready(r);
  if (done(r, work(r)->cuMemcpyAtoD(c.to, c.array_from, 0, BYTES)))
    on_device(r, &c);
}

void row_cuMemcpyAtoD_v2(struct rows *r) {
  struct copy c = copy_ready(r);
  if (done(r, work(r)->cuMemcpyAtoD_v2(c.to, c.array_from, 0, BYTES)))
    on_device(r, &c);
}

void row_cuMemcpyAtoD_v2_ptds(struct rows *r) {
  struct copy c = copy_ready(r);
  if (done(r, work(r)->cuMemcpyAtoD_v2_ptds(c.to, c.array_from, 0, BYTES)))
    on_device(r, &c);
}

void row_cuMemcpyAtoA(struct rows *r) {
  struct copy c = copy_ready(r);
  if (done(r, work(r)->cuMemcpyAtoA(c.array_to, 0, c.array_from, 0, BYTES)))
    in_array(r, &c);
}

void row_cuMemcpyAtoA_v2(struct rows *r) {
  struct copy c = copy_ready(r);
  if (done(r, work(r)->cuMemcpyAtoA_v2(c.array_to, 0, c.array_from, 0, BYTES)))
    in_array(r, &c);
}

void row_cuMemcpyAtoA_v2_ptds(struct rows *r) {
  struct copy c = copy_ready(r);
  if (done(r, work(r)->cuMemcpyAtoA_v2_ptds(c.array_to, 0, c.array_from, 0, BYTES)))
    in_array(r, &c);
}

void row_cuMemcpyPeer(struct rows *r) {
  struct copy c = copy_ready(r);
  if (done(r, work(r)->cuMemcpyPeer(c.to, r->ctx, c.from, r->ctx, BYTES)))
    on_device(r, &c);
}

void row_cuMemcpyPeer_ptds(struct rows *r) {
  struct copy c = copy_ready(r);
  if (done(r, work(r)->cuMemcpyPeer_ptds(c.to, r->ctx, c.from, r->ctx, BYTES)))
    on_device(r, &c);
}

void row_cuMemcpyPeerAsync(struct rows *r) {
  struct copy c = copy_ready(r);
  CUstream on = stream(r);
  if (done(r, work(r)->cuMemcpyPeerAsync(c.to, r->ctx, c.from, r->ctx, BYTES, on)))
    on_device(r, &c);
  capture(r, on);
  done(r, start(r)->cuMemcpyPeerAsync(c.to, r->ctx, c.from, r->ctx, BYTES, on));
  captured(r, on, 1);
}

void row_cuMemcpyPeerAsync_ptsz(struct rows *r) {
  struct copy c = copy_ready(r);
  if (done(r, work(r)->cuMemcpyPeerAsync_ptsz(c.to, r->ctx, c.from, r->ctx, BYTES, NULL)))
    on_device(r, &c);
  capture(r, CU_STREAM_PER_THREAD);
  done(r, start(r)->cuMemcpyPeerAsync_ptsz(c.to, r->ctx, c.from, r->ctx, BYTES, NULL));
  captured(r, CU_STREAM_PER_THREAD, 1);
}
