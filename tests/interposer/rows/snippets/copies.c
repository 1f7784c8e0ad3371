/* Copies. Those over the link, to and from the device, need no lease. Those within the device use its memory bandwidth,
 * so they need a lease as kernels do. */
#include "rows.h"

/* ---- the kind of both ends is in the function's name ---- */

void row_cuMemcpyHtoDAsync_v2(struct rows *r) {
  struct copy c = copy_ready(r);
  if (done(r, start(r)->cuMemcpyHtoDAsync_v2(c.to, c.host_from, BYTES, given(r))))
    on_device(r, &c);
  if (captured_too(r)) {
    done(r, start(r)->cuMemcpyHtoDAsync_v2(c.to, c.host_from, BYTES, given(r)));
    captured(r, stream(r), 1);
  }
}

void row_cuMemcpyDtoHAsync_v2(struct rows *r) {
  struct copy c = copy_ready(r);
  if (done(r, start(r)->cuMemcpyDtoHAsync_v2(c.host_to, c.from, BYTES, given(r))))
    on_host(r, &c);
  if (captured_too(r)) {
    done(r, start(r)->cuMemcpyDtoHAsync_v2(c.host_to, c.from, BYTES, given(r)));
    captured(r, stream(r), 1);
  }
}

void row_cuMemcpyHtoAAsync_v2(struct rows *r) {
  struct copy c = copy_ready(r);
  if (done(r, start(r)->cuMemcpyHtoAAsync_v2(c.array_to, 0, c.host_from, BYTES, given(r))))
    in_array(r, &c);
  if (captured_too(r)) {
    done(r, start(r)->cuMemcpyHtoAAsync_v2(c.array_to, 0, c.host_from, BYTES, given(r)));
    captured(r, stream(r), 1);
  }
}

void row_cuMemcpyAtoHAsync_v2(struct rows *r) {
  struct copy c = copy_ready(r);
  if (done(r, start(r)->cuMemcpyAtoHAsync_v2(c.host_to, c.array_from, 0, BYTES, given(r))))
    on_host(r, &c);
  if (captured_too(r)) {
    done(r, start(r)->cuMemcpyAtoHAsync_v2(c.host_to, c.array_from, 0, BYTES, given(r)));
    captured(r, stream(r), 1);
  }
}

void row_cuMemcpyDtoDAsync_v2(struct rows *r) {
  struct copy c = copy_ready(r);
  if (done(r, work(r)->cuMemcpyDtoDAsync_v2(c.to, c.from, BYTES, given(r))))
    on_device(r, &c);
  if (captured_too(r)) {
    done(r, start(r)->cuMemcpyDtoDAsync_v2(c.to, c.from, BYTES, given(r)));
    captured(r, stream(r), 1);
  }
}

void row_cuMemcpyPeerAsync(struct rows *r) {
  struct copy c = copy_ready(r);
  if (done(r, work(r)->cuMemcpyPeerAsync(c.to, r->ctx, c.from, r->ctx, BYTES, given(r))))
    on_device(r, &c);
  if (captured_too(r)) {
    done(r, start(r)->cuMemcpyPeerAsync(c.to, r->ctx, c.from, r->ctx, BYTES, given(r)));
    captured(r, stream(r), 1);
  }
}

void row_cuMemcpyDtoA_v2(struct rows *r) {
  struct copy c = copy_ready(r);
  if (done(r, work(r)->cuMemcpyDtoA_v2(c.array_to, 0, c.from, BYTES)))
    in_array(r, &c);
}

void row_cuMemcpyAtoD_v2(struct rows *r) {
  struct copy c = copy_ready(r);
  if (done(r, work(r)->cuMemcpyAtoD_v2(c.to, c.array_from, 0, BYTES)))
    on_device(r, &c);
}

void row_cuMemcpyAtoA_v2(struct rows *r) {
  struct copy c = copy_ready(r);
  if (done(r, work(r)->cuMemcpyAtoA_v2(c.array_to, 0, c.array_from, 0, BYTES)))
    in_array(r, &c);
}

/* ---- pointers determine the direction ---- */

void row_cuMemcpyAsync(struct rows *r) {
  struct copy in = copy_ready(r), out = copy_ready(r), within = copy_ready(r);
  if (done(r, start(r)->cuMemcpyAsync(in.to, number(in.host_from), BYTES, given(r))))
    on_device(r, &in);
  if (done(r, start(r)->cuMemcpyAsync(number(out.host_to), out.from, BYTES, given(r))))
    on_host(r, &out);
  if (done(r, work(r)->cuMemcpyAsync(within.to, within.from, BYTES, given(r))))
    on_device(r, &within);
  if (captured_too(r)) {
    done(r, start(r)->cuMemcpyAsync(within.to, within.from, BYTES, given(r)));
    captured(r, stream(r), 1);
  }
}

void row_cuMemcpyWithAttributesAsync(struct rows *r) {
  struct copy in = copy_ready(r), out = copy_ready(r), within = copy_ready(r);
  CUmemcpyAttributes how = {.srcAccessOrder = ACCESS_IN_STREAM};
  if (done(r, start(r)->cuMemcpyWithAttributesAsync(in.to, number(in.host_from), BYTES, &how, given(r))))
    on_device(r, &in);
  if (done(r, start(r)->cuMemcpyWithAttributesAsync(number(out.host_to), out.from, BYTES, &how, given(r))))
    on_host(r, &out);
  if (done(r, work(r)->cuMemcpyWithAttributesAsync(within.to, within.from, BYTES, &how, given(r))))
    on_device(r, &within);
}

/* ---- batches of two copies that together equal one ---- */

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
  struct batch b = batch_of(in.to, number(in.host_from));
  if (done(r, start(r)->cuMemcpyBatchAsync(b.to, b.from, b.sizes, 2, b.how, b.first, 1, &b.failed, given(r))))
    on_device(r, &in);
  b = batch_of(number(out.host_to), out.from);
  if (done(r, start(r)->cuMemcpyBatchAsync(b.to, b.from, b.sizes, 2, b.how, b.first, 1, &b.failed, given(r))))
    on_host(r, &out);
  b = batch_of(within.to, within.from);
  if (done(r, work(r)->cuMemcpyBatchAsync(b.to, b.from, b.sizes, 2, b.how, b.first, 1, &b.failed, given(r))))
    on_device(r, &within);
  b = mixed_batch_of(&mixed);
  if (done(r, work(r)->cuMemcpyBatchAsync(b.to, b.from, b.sizes, 2, b.how, b.first, 1, &b.failed, given(r))))
    on_device(r, &mixed);
}
