/* Kernels and graphs. */
#include "rows.h"

static CUlaunchConfig shape_on(CUstream on) {
  return (CUlaunchConfig){
      .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1, .hStream = on};
}

void row_cuLaunchKernel(struct rows *r) {
  CUstream on = stream(r);
  struct kernel k;
  kernel_ready(r, &k, on);
  if (done(r, work(r)->cuLaunchKernel(k.function, 1, 1, 1, 1, 1, 1, 0, on, k.params, NULL)))
    kernel_ran(r, &k);
  capture(r, on);
  done(r, start(r)->cuLaunchKernel(k.function, 1, 1, 1, 1, 1, 1, 0, on, k.params, NULL));
  captured(r, on, 1);
}

void row_cuLaunchKernel_ptsz(struct rows *r) {
  struct kernel k;
  kernel_ready(r, &k, CU_STREAM_PER_THREAD);
  if (done(r, work(r)->cuLaunchKernel_ptsz(k.function, 1, 1, 1, 1, 1, 1, 0, NULL, k.params, NULL)))
    kernel_ran(r, &k);
  capture(r, CU_STREAM_PER_THREAD);
  done(r, start(r)->cuLaunchKernel_ptsz(k.function, 1, 1, 1, 1, 1, 1, 0, NULL, k.params, NULL));
  captured(r, CU_STREAM_PER_THREAD, 1);
}

void row_cuLaunchKernelEx(struct rows *r) {
  CUstream on = stream(r);
  const CUlaunchConfig shape = shape_on(on);
  struct kernel k;
  kernel_ready(r, &k, on);
  if (done(r, work(r)->cuLaunchKernelEx(&shape, k.function, k.params, NULL)))
    kernel_ran(r, &k);
  capture(r, on);
  done(r, start(r)->cuLaunchKernelEx(&shape, k.function, k.params, NULL));
  captured(r, on, 1);
}

void row_cuLaunchKernelEx_ptsz(struct rows *r) {
  const CUlaunchConfig shape = shape_on(NULL);
  struct kernel k;
  kernel_ready(r, &k, CU_STREAM_PER_THREAD);
  if (done(r, work(r)->cuLaunchKernelEx_ptsz(&shape, k.function, k.params, NULL)))
    kernel_ran(r, &k);
  capture(r, CU_STREAM_PER_THREAD);
  done(r, start(r)->cuLaunchKernelEx_ptsz(&shape, k.function, k.params, NULL));
  captured(r, CU_STREAM_PER_THREAD, 1);
}

void row_cuLaunchCooperativeKernel(struct rows *r) {
  CUstream on = stream(r);
  struct kernel k;
  kernel_ready(r, &k, on);
  if (done(r, work(r)->cuLaunchCooperativeKernel(k.function, 1, 1, 1, 1, 1, 1, 0, on, k.params)))
    kernel_ran(r, &k);
  capture(r, on);
  done(r, start(r)->cuLaunchCooperativeKernel(k.function, 1, 1, 1, 1, 1, 1, 0, on, k.params));
  captured(r, on, 1);
}

void row_cuLaunchCooperativeKernel_ptsz(struct rows *r) {
  struct kernel k;
  kernel_ready(r, &k, CU_STREAM_PER_THREAD);
  if (done(r, work(r)->cuLaunchCooperativeKernel_ptsz(k.function, 1, 1, 1, 1, 1, 1, 0, NULL, k.params)))
    kernel_ran(r, &k);
  capture(r, CU_STREAM_PER_THREAD);
  done(r, start(r)->cuLaunchCooperativeKernel_ptsz(k.function, 1, 1, 1, 1, 1, 1, 0, NULL, k.params));
  captured(r, CU_STREAM_PER_THREAD, 1);
}

void row_cuLaunchCooperativeKernelMultiDevice(struct rows *r) {
  CUstream on = stream(r);
  struct kernel k;
  kernel_ready(r, &k, on);
  CUDA_LAUNCH_PARAMS list[] = {{.function = k.function,
                                .gridDimX = 1,
                                .gridDimY = 1,
                                .gridDimZ = 1,
                                .blockDimX = 1,
                                .blockDimY = 1,
                                .blockDimZ = 1,
                                .hStream = on,
                                .kernelParams = k.params}};
  if (done(r, work(r)->cuLaunchCooperativeKernelMultiDevice(list, 1, 0)))
    kernel_ran(r, &k);
}

/* The oldest launch functions take the shape and the arguments from the function. */
static void kernel_set(struct rows *r, struct kernel *k) {
  need(r, cuFuncSetBlockShape(k->function, 1, 1, 1), "a block's shape");
  need(r, cuParamSetSize(k->function, sizeof k->ns), "the size of the arguments");
  need(r, cuParamSetv(k->function, 0, &k->ns, sizeof k->ns), "the argument");
}

void row_cuLaunch(struct rows *r) {
  struct kernel k;
  kernel_ready(r, &k, NULL);
  kernel_set(r, &k);
  if (done(r, work(r)->cuLaunch(k.function)))
    kernel_ran(r, &k);
}

void row_cuLaunchGrid(struct rows *r) {
  struct kernel k;
  kernel_ready(r, &k, NULL);
  kernel_set(r, &k);
  if (done(r, work(r)->cuLaunchGrid(k.function, 1, 1)))
    kernel_ran(r, &k);
}

void row_cuLaunchGridAsync(struct rows *r) {
  CUstream on = stream(r);
  struct kernel k;
  kernel_ready(r, &k, on);
  kernel_set(r, &k);
  if (done(r, work(r)->cuLaunchGridAsync(k.function, 1, 1, on)))
    kernel_ran(r, &k);
  capture(r, on);
  done(r, start(r)->cuLaunchGridAsync(k.function, 1, 1, on));
  captured(r, on, 1);
}

static CUgraphExec kernel_graph(struct rows *r, struct kernel *k, CUstream on) {
  capture(r, on);
  need(r, cuLaunchKernel(k->function, 1, 1, 1, 1, 1, 1, 0, on, k->params, NULL), "capture a kernel");
  return instantiated(r, captured(r, on, 1));
}

void row_cuGraphLaunch(struct rows *r) {
  CUstream on = stream(r);
  struct kernel k;
  kernel_ready(r, &k, on);
  CUgraphExec exec = kernel_graph(r, &k, on);
  need(r, cuEventRecord(k.before, on), "record an event");
  if (done(r, work(r)->cuGraphLaunch(exec, on)))
    kernel_ran(r, &k);
  capture(r, on);
  done(r, start(r)->cuGraphLaunch(exec, on));
  captured(r, on, 1);
}

void row_cuGraphLaunch_ptsz(struct rows *r) {
  struct kernel k;
  kernel_ready(r, &k, CU_STREAM_PER_THREAD);
  CUgraphExec exec = kernel_graph(r, &k, CU_STREAM_PER_THREAD);
  need(r, cuEventRecord(k.before, CU_STREAM_PER_THREAD), "record an event");
  if (done(r, work(r)->cuGraphLaunch_ptsz(exec, NULL)))
    kernel_ran(r, &k);
  capture(r, CU_STREAM_PER_THREAD);
  done(r, start(r)->cuGraphLaunch_ptsz(exec, NULL));
  captured(r, CU_STREAM_PER_THREAD, 1);
}
