/* Copies over the link, to and from the device: none of them may need a lease. */
#include "rows.h"

void row_cuMemcpyHtoD(struct rows *r) {
  struct copy c = copy_ready(r);
  if (done(r, start(r)->cuMemcpyHtoD(c.to, c.host_from, BYTES)))
    on_device(r, &c);
}

void row_cuMemcpyHtoD_v2(struct rows *r) {
  struct copy c = copy_ready(r);
  if (done(r, start(r)->cuMemcpyHtoD_v2(c.to, c.host_from, BYTES)))
    on_device(r, &c);
}

void row_cuMemcpyHtoD_v2_ptds(struct rows *r) {
  struct copy c = copy_ready(r);
  if (done(r, start(r)->cuMemcpyHtoD_v2_ptds(c.to, c.host_from, BYTES)))
    on_device(r, &c);
}

void row_cuMemcpyHtoDAsync(struct rows *r) {
  struct copy c = copy_ready(r);
  CUstream on = stream(r);
  if (done(r, start(r)->cuMemcpyHtoDAsync(c.to, c.host_from, BYTES, on)))
    on_device(r, &c);
  capture(r, on);
  done(r, start(r)->cuMemcpyHtoDAsync(c.to, c.host_from, BYTES, on));
  captured(r, on, 1);
}

void row_cuMemcpyHtoDAsync_v2(struct rows *r) {
  struct copy c = copy_ready(r);
  CUstream on = stream(r);
  if (done(r, start(r)->cuMemcpyHtoDAsync_v2(c.to, c.host_from, BYTES, on)))
    on_device(r, &c);
  capture(r, on);
  done(r, start(r)->cuMemcpyHtoDAsync_v2(c.to, c.host_from, BYTES, on));
  captured(r, on, 1);
}

void row_cuMemcpyHtoDAsync_v2_ptsz(struct rows *r) {
  struct copy c = copy_ready(r);
  if (done(r, start(r)->cuMemcpyHtoDAsync_v2_ptsz(c.to, c.host_from, BYTES, NULL)))
    on_device(r, &c);
  capture(r, CU_STREAM_PER_THREAD);
  done(r, start(r)->cuMemcpyHtoDAsync_v2_ptsz(c.to, c.host_from, BYTES, NULL));
  captured(r, CU_STREAM_PER_THREAD, 1);
}

void row_cuMemcpyDtoH(struct rows *r) {
  struct copy c = copy_ready(r);
  if (done(r, start(r)->cuMemcpyDtoH(c.host_to, c.from, BYTES)))
    on_host(r, &c);
}

void row_cuMemcpyDtoH_v2(struct rows *r) {
  struct copy c = copy_ready(r);
  if (done(r, start(r)->cuMemcpyDtoH_v2(c.host_to, c.from, BYTES)))
    on_host(r, &c);
}

void row_cuMemcpyDtoH_v2_ptds(struct rows *r) {
  struct copy c = copy_ready(r);
  if (done(r, start(r)->cuMemcpyDtoH_v2_ptds(c.host_to, c.from, BYTES)))
    on_host(r, &c);
}

void row_cuMemcpyDtoHAsync(struct rows *r) {
  struct copy c = copy_ready(r);
  CUstream on = stream(r);
  if (done(r, start(r)->cuMemcpyDtoHAsync(c.host_to, c.from, BYTES, on)))
    on_host(r, &c);
  capture(r, on);
  done(r, start(r)->cuMemcpyDtoHAsync(c.host_to, c.from, BYTES, on));
  captured(r, on, 1);
}

void row_cuMemcpyDtoHAsync_v2(struct rows *r) {
  struct copy c = copy_ready(r);
  CUstream on = stream(r);
  if (done(r, start(r)->cuMemcpyDtoHAsync_v2(c.host_to, c.from, BYTES, on)))
    on_host(r, &c);
  capture(r, on);
  done(r, start(r)->cuMemcpyDtoHAsync_v2(c.host_to, c.from, BYTES, on));
  captured(r, on, 1);
}

void row_cuMemcpyDtoHAsync_v2_ptsz(struct rows *r) {
  struct copy c = copy_ready(r);
  if (done(r, start(r)->cuMemcpyDtoHAsync_v2_ptsz(c.host_to, c.from, BYTES, NULL)))
    on_host(r, &c);
  capture(r, CU_STREAM_PER_THREAD);
  done(r, start(r)->cuMemcpyDtoHAsync_v2_ptsz(c.host_to, c.from, BYTES, NULL));
  captured(r, CU_STREAM_PER_THREAD, 1);
}

void row_cuMemcpyHtoA(struct rows *r) {
  struct copy c = copy_ready(r);
  if (done(r, start(r)->cuMemcpyHtoA(c.array_to, 0, c.host_from, BYTES)))
    in_array(r, &c);
}

void row_cuMemcpyHtoA_v2(struct rows *r) {
  struct copy c = copy_ready(r);
  if (done(r, start(r)->cuMemcpyHtoA_v2(c.array_to, 0, c.host_from, BYTES)))
    in_array(r, &c);
}

void row_cuMemcpyHtoA_v2_ptds(struct rows *r) {
  struct copy c = copy_ready(r);
  if (done(r, start(r)->cuMemcpyHtoA_v2_ptds(c.array_to, 0, c.host_from, BYTES)))
    in_array(r, &c);
}

void row_cuMemcpyHtoAAsync(struct rows *r) {
  struct copy c = copy_ready(r);
  CUstream on = stream(r);
  if (done(r, start(r)->cuMemcpyHtoAAsync(c.array_to, 0, c.host_from, BYTES, on)))
    in_array(r, &c);
  capture(r, on);
  done(r, start(r)->cuMemcpyHtoAAsync(c.array_to, 0, c.host_from, BYTES, on));
  captured(r, on, 1);
}

void row_cuMemcpyHtoAAsync_v2(struct rows *r) {
  struct copy c = copy_ready(r);
  CUstream on = stream(r);
  if (done(r, start(r)->cuMemcpyHtoAAsync_v2(c.array_to, 0, c.host_from, BYTES, on)))
    in_array(r, &c);
  capture(r, on);
  done(r, start(r)->cuMemcpyHtoAAsync_v2(c.array_to, 0, c.host_from, BYTES, on));
  captured(r, on, 1);
}

void row_cuMemcpyHtoAAsync_v2_ptsz(struct rows *r) {
  struct copy c = copy_ready(r);
  if (done(r, start(r)->cuMemcpyHtoAAsync_v2_ptsz(c.array_to, 0, c.host_from, BYTES, NULL)))
    in_array(r, &c);
  capture(r, CU_STREAM_PER_THREAD);
  done(r, start(r)->cuMemcpyHtoAAsync_v2_ptsz(c.array_to, 0, c.host_from, BYTES, NULL));
  captured(r, CU_STREAM_PER_THREAD, 1);
}

void row_cuMemcpyAtoH(struct rows *r) {
  struct copy c = copy_ready(r);
  if (done(r, start(r)->cuMemcpyAtoH(c.host_to, c.array_from, 0, BYTES)))
    on_host(r, &c);
}

void row_cuMemcpyAtoH_v2(struct rows *r) {
  struct copy c = copy_ready(r);
  if (done(r, start(r)->cuMemcpyAtoH_v2(c.host_to, c.array_from, 0, BYTES)))
    on_host(r, &c);
}

void row_cuMemcpyAtoH_v2_ptds(struct rows *r) {
  struct copy c = copy_ready(r);
  if (done(r, start(r)->cuMemcpyAtoH_v2_ptds(c.host_to, c.array_from, 0, BYTES)))
    on_host(r, &c);
}

void row_cuMemcpyAtoHAsync(struct rows *r) {
  struct copy c = copy_ready(r);
  CUstream on = stream(r);
  if (done(r, start(r)->cuMemcpyAtoHAsync(c.host_to, c.array_from, 0, BYTES, on)))
    on_host(r, &c);
  capture(r, on);
  done(r, start(r)->cuMemcpyAtoHAsync(c.host_to, c.array_from, 0, BYTES, on));
  captured(r, on, 1);
}

void row_cuMemcpyAtoHAsync_v2(struct rows *r) {
  struct copy c = copy_ready(r);
  CUstream on = stream(r);
  if (done(r, start(r)->cuMemcpyAtoHAsync_v2(c.host_to, c.array_from, 0, BYTES, on)))
    on_host(r, &c);
  capture(r, on);
  done(r, start(r)->cuMemcpyAtoHAsync_v2(c.host_to, c.array_from, 0, BYTES, on));
  captured(r, on, 1);
}

void row_cuMemcpyAtoHAsync_v2_ptsz(struct rows *r) {
  struct copy c = copy_ready(r);
  if (done(r, start(r)->cuMemcpyAtoHAsync_v2_ptsz(c.host_to, c.array_from, 0, BYTES, NULL)))
    on_host(r, &c);
  capture(r, CU_STREAM_PER_THREAD);
  done(r, start(r)->cuMemcpyAtoHAsync_v2_ptsz(c.host_to, c.array_from, 0, BYTES, NULL));
  captured(r, CU_STREAM_PER_THREAD, 1);
}
