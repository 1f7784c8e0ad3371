/* Ends objects while work of theirs is in flight: drops END PTX WAIT MS N NS. For MS milliseconds it makes the object,
 * launches N kernels of NS, waits by WAIT (none, event, stream, context), and ends it. END: context, module, kernel (of
 * a library, in a context), streams (of a context), stream, thread (its own stream), graph, primary. Prints the device
 * time of its kernels. */
#include "program.h"

static const char *waits, *ptx;
static uint64_t n, ns;

static void launch(CUfunction function, CUstream stream) { launch_of(function, ns, stream); }

static void work(CUfunction function, CUstream stream) {
  for (uint64_t i = 0; i < n; i++)
    launch(function, stream);
  truth += n * ns;
}

static void wait_for(CUstream stream) {
  CUevent event;
  if (!strcmp(waits, "stream"))
    OK(cuStreamSynchronize(stream));
  if (!strcmp(waits, "context"))
    OK(cuCtxSynchronize());
  if (strcmp(waits, "event"))
    return;
  OK(cuEventCreate(&event, 2 /* no timing */));
  OK(cuEventRecord(event, stream));
  OK(cuEventSynchronize(event));
  OK(cuEventDestroy_v2(event));
}

static CUfunction load(CUmodule *module) {
  CUfunction function;
  OK(cuModuleLoad(module, ptx));
  OK(cuModuleGetFunction(&function, *module, "spin_ns"));
  return function;
}

static void context_ends(void) {
  CUcontext made;
  CUmodule module;
  OK(cuCtxCreate_v2(&made, 0, 0));
  work(load(&module), NULL);
  wait_for(NULL);
  OK(cuCtxDestroy_v2(made));
  OK(cuCtxSetCurrent(context));
}

static void streams_end(void) {
  CUcontext made;
  CUmodule module;
  CUstream stream[2];
  OK(cuCtxCreate_v2(&made, 0, 0));
  CUfunction function = load(&module);
  for (int i = 0; i < 2; i++) {
    OK(cuStreamCreate(&stream[i], 1));
    work(function, stream[i]);
    wait_for(stream[i]);
    OK(cuStreamDestroy_v2(stream[i]));
  }
  OK(cuCtxDestroy_v2(made));
  OK(cuCtxSetCurrent(context));
}

static void kernel_ends(void) {
  CUcontext made;
  CUlibrary library;
  CUkernel kernel;
  OK(cuCtxCreate_v2(&made, 0, 0));
  OK(cuLibraryLoadFromFile(&library, ptx, NULL, NULL, 0, NULL, NULL, 0));
  OK(cuLibraryGetKernel(&kernel, library, "spin_ns"));
  work((CUfunction)kernel, NULL);
  wait_for(NULL);
  OK(cuCtxDestroy_v2(made));
  OK(cuCtxSetCurrent(context));
  OK(cuLibraryUnload(library));
}

static void module_ends(void) {
  CUmodule module;
  work(load(&module), streams[0]);
  wait_for(streams[0]);
  OK(cuModuleUnload(module));
}

static void stream_ends(void) {
  CUstream stream;
  OK(cuStreamCreate(&stream, 1));
  work(kernels[0], stream);
  wait_for(stream);
  OK(cuStreamDestroy_v2(stream));
}

static void *in_thread(void *unused) {
  OK(cuCtxSetCurrent(context));
  work(kernels[0], (CUstream)2 /* the thread's own */);
  wait_for((CUstream)2);
  return unused;
}

static void thread_ends(void) {
  pthread_t thread;
  pthread_create(&thread, NULL, in_thread, NULL);
  pthread_join(thread, NULL);
}

static void graph_ends(void) {
  CUgraph graph;
  CUgraphExec exec;
  OK(cuStreamBeginCapture_v2(streams[0], 1));
  work(kernels[0], streams[0]);
  OK(cuStreamEndCapture(streams[0], &graph));
  OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  OK(cuGraphLaunch(exec, streams[0]));
  wait_for(streams[0]);
  OK(cuGraphExecDestroy(exec));
  OK(cuGraphDestroy(graph));
}

static void primary_ends(void) {
  CUcontext primary;
  CUmodule module;
  OK(cuDevicePrimaryCtxRetain(&primary, 0));
  OK(cuCtxSetCurrent(primary));
  work(load(&module), NULL);
  wait_for(NULL);
  OK(cuDevicePrimaryCtxReset_v2(0));
  OK(cuCtxSetCurrent(context));
}

int main(int argc, char **argv) {
  static const struct {
    const char *name;
    void (*round)(void);
  } ends[] = {{"context", context_ends}, {"streams", streams_end}, {"kernel", kernel_ends}, {"module", module_ends},
              {"stream", stream_ends},   {"thread", thread_ends},  {"graph", graph_ends},   {"primary", primary_ends}};
  uint64_t began, rounds = 0;
  size_t end = 0;
  if (argc < 7)
    return 2;
  while (end < sizeof ends / sizeof *ends && strcmp(argv[1], ends[end].name))
    end++;
  if (end == sizeof ends / sizeof *ends)
    return 2;
  ptx = argv[2];
  waits = argv[3];
  n = number(argv[5]);
  ns = number(argv[6]);
  start(ptx);
  for (began = now(); now() - began < number(argv[4]) * 1000000; rounds++)
    ends[end].round();
  OK(cuCtxSynchronize());
  report("{\"truth_ns\": %llu, \"rounds\": %llu}\n", (unsigned long long)truth, (unsigned long long)rounds);
  return stay();
}
