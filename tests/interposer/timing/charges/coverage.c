/* Work submitted in unusual ways. coverage MODE PTX: prints the device time of its launches, as a JSON line, once all
 * work is done. */
#include <sched.h>

#include "program.h"

enum { MS = 1000000, US = 1000 };

static const char *ptx;
static CUfunction any; /* runs in the context of its stream, whichever that is */

static void rest(uint64_t ns) {
  nanosleep(&(struct timespec){(time_t)(ns / 1000000000), (long)(ns % 1000000000)}, NULL);
}

static void spin_as(CUfunction function, unsigned int blocks, uint64_t ns, CUstream stream) {
  void *arguments[] = {&ns};
  OK(cuLaunchKernel(function, blocks, 1, 1, 1, 1, 1, 0, stream, arguments, NULL));
  truth += ns;
}

static void find_kernel(void) {
  CUlibrary library;
  CUkernel kernel;
  OK(cuLibraryLoadFromFile(&library, ptx, NULL, NULL, 0, NULL, NULL, 0));
  OK(cuLibraryGetKernel(&kernel, library, "spin_ns"));
  any = (CUfunction)(void *)kernel;
}

/* Waits without a driver call: sleeps for the time that the work needs, and 20 ms more. */
static void let_run(uint64_t since) { rest(truth + 20 * MS - since); }

static CUcontext current(void) {
  CUcontext now_current;
  OK(cuCtxGetCurrent(&now_current));
  return now_current;
}

/* A CUkernel may be launched into a stream of a context that is not current, or while none is current. */
static void elsewhere(CUcontext other, bool wait) {
  find_kernel();
  OK(cuCtxSetCurrent(other));
  for (int i = 0; i < 40; i++) {
    spin_as(any, 1, 10 * MS, streams[i & 1]);
    if (wait)
      OK(cuStreamSynchronize(streams[i & 1]));
  }
  if (current() != other)
    exit(3);
  if (!wait)
    let_run(0);
}

static CUcontext another(void) {
  CUcontext other;
  CUdevice device;
  OK(cuDeviceGet(&device, 0));
  OK(cuCtxCreate_v2(&other, 0, device));
  return other;
}

static void from_callback(void *unused) {
  (void)unused;
  for (int i = 0; i < 10; i++)
    spin_as(kernels[0], 1, 10 * MS, streams[1]);
}

static void callback(void) {
  OK(cuLaunchHostFunc(streams[0], from_callback, NULL));
  OK(cuStreamSynchronize(streams[0]));
  let_run(0);
}

static void *in_stream(void *stream) {
  OK(cuCtxSetCurrent(context));
  for (int i = 0; i < 20; i++)
    spin_as(kernels[0], 1, 10 * MS, stream);
  return NULL;
}

/* A capture is left open while another stream works; the launches come from the same thread or from another one. */
static void open_capture(int mode, bool other_thread) {
  CUstreamCaptureStatus status;
  CUstreamCaptureMode before = 2;
  CUstream captured;
  CUgraph graph;
  size_t nodes = 0;
  pthread_t thread;
  OK(cuStreamCreate(&captured, 0));
  OK(cuStreamBeginCapture_v2(captured, mode));
  spin_as(kernels[0], 1, 0, captured);
  if (other_thread) {
    pthread_create(&thread, NULL, in_stream, streams[0]);
    pthread_join(thread, NULL);
  } else {
    in_stream(streams[0]);
  }
  let_run(0);
  OK(cuStreamIsCapturing(captured, &status));
  OK(cuThreadExchangeStreamCaptureMode(&before));
  OK(cuStreamEndCapture(captured, &graph));
  OK(cuGraphGetNodes(graph, NULL, &nodes));
  if (status != 1 || before != 0 || nodes != 1)
    exit(3);
}

/* Work while more captures are open than a table might hold, and after all of them have ended. */
static void many_captures(void) {
  enum { CAPTURES = 200 };
  static CUstream captured[CAPTURES];
  CUgraph graph;
  for (int i = 0; i < CAPTURES; i++) {
    OK(cuStreamCreate(&captured[i], 1));
    OK(cuStreamBeginCapture_v2(captured[i], 2));
  }
  in_stream(streams[0]);
  for (int i = 0; i < CAPTURES; i++)
    if (i % 2)
      OK(cuStreamEndCapture(captured[i], &graph));
    else
      OK(cuStreamDestroy_v2(captured[i]));
  in_stream(streams[1]);
  let_run(0);
}

static void many_streams(int n) {
  CUstream *stream = calloc((size_t)n, sizeof(CUstream));
  for (int i = 0; i < n; i++) {
    OK(cuStreamCreate(&stream[i], 1));
    spin_as(kernels[0], 1, 5 * US, stream[i]);
  }
  OK(cuCtxSynchronize());
  for (int i = 0; i < 100; i++)
    spin_as(kernels[0], 1, 5 * MS, stream[n - 1 - i]);
  let_run(0);
}

static void many_contexts(void) {
  enum { CONTEXTS = 80 };
  static CUcontext contexts[CONTEXTS];
  find_kernel();
  for (int i = 0; i < CONTEXTS; i++) {
    contexts[i] = another();
    spin_as(any, 1, US, NULL);
    OK(cuCtxSynchronize());
  }
  for (int i = 0; i < 20; i++) {
    OK(cuCtxSetCurrent(contexts[CONTEXTS - 1 - i]));
    spin_as(any, 1, 10 * MS, NULL);
  }
  let_run(0);
}

/* First launches of a function, one long launch in each stream, never waited for. The meter keeps a function's duration
 * for each power of two of its blocks, so each launch is a first one. */
static void first_launches(void) {
  enum { STREAMS = 24 };
  for (int i = 0; i < STREAMS; i++) {
    CUstream stream;
    OK(cuStreamCreate(&stream, 1));
    spin_as(kernels[0], 1u << i, 10 * MS, stream);
  }
  let_run(0);
}

/* The launches of a function were short, then they take long, and nobody waits for those. */
static void outlasts(CUstream stream) {
  for (int i = 0; i < 40; i++) {
    spin_as(kernels[0], 1, 20 * US, stream);
    OK(cuStreamSynchronize(stream));
  }
  for (int i = 0; i < 4; i++) {
    uint64_t before = truth;
    spin_as(kernels[0], 1, 60 * MS, stream);
    let_run(before);
  }
}

static void *own_stream(void *unused) {
  OK(cuCtxSetCurrent(context));
  outlasts(CU_STREAM_PER_THREAD);
  return unused;
}

static void per_thread(void) {
  pthread_t thread;
  pthread_create(&thread, NULL, own_stream, NULL);
  pthread_join(thread, NULL);
}

static void destroyed(void) {
  for (int i = 0; i < 10; i++) {
    CUstream stream;
    OK(cuStreamCreate(&stream, 1));
    spin_as(kernels[0], 1, 20 * MS, stream);
    OK(cuStreamDestroy_v2(stream));
  }
  let_run(0);
}

/* One stream works, the other one is queried and waited for. */
static void other_is_asked(void) {
  for (int i = 0; i < 20; i++) {
    spin_as(kernels[0], 1, 10 * MS, streams[0]);
    OK(cuStreamSynchronize(streams[1]));
    rest(2 * MS);
    OK(cuStreamQuery(streams[1]));
  }
  OK(cuStreamSynchronize(streams[0]));
}

static CUstream doomed;
static pthread_rwlock_t dooming = PTHREAD_RWLOCK_INITIALIZER;
static volatile int rounds_over;

static void *into_doomed(void *unused) {
  uint64_t ns = 100 * US;
  while (!rounds_over) {
    pthread_rwlock_rdlock(&dooming);
    if (doomed)
      launch_of(any, ns, doomed);
    pthread_rwlock_unlock(&dooming);
    sched_yield();
  }
  return unused;
}

/* Contexts are destroyed with work in flight that threads without a current context launch until the last moment. */
static void racing(void) {
  enum { THREADS = 3, ROUNDS = 20 };
  pthread_t threads[THREADS];
  find_kernel();
  for (int i = 0; i < THREADS; i++)
    pthread_create(&threads[i], NULL, into_doomed, NULL);
  for (int i = 0; i < ROUNDS; i++) {
    CUcontext dies = another();
    pthread_rwlock_wrlock(&dooming);
    OK(cuStreamCreate(&doomed, 1));
    pthread_rwlock_unlock(&dooming);
    rest(2 * MS);
    pthread_rwlock_wrlock(&dooming);
    OK(cuCtxDestroy_v2(dies));
    doomed = NULL;
    pthread_rwlock_unlock(&dooming);
  }
  rounds_over = 1;
  for (int i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
  OK(cuCtxSetCurrent(context));
  in_stream(streams[0]);
  OK(cuStreamSynchronize(streams[0]));
}

int main(int argc, char **argv) {
  if (argc < 3)
    return 2;
  const char *mode = argv[1];
  ptx = argv[2];
  start(ptx);
  if (!strcmp(mode, "usual"))
    elsewhere(context, true);
  else if (!strcmp(mode, "foreign"))
    elsewhere(another(), true);
  else if (!strcmp(mode, "foreign-unwaited"))
    elsewhere(another(), false);
  else if (!strcmp(mode, "none"))
    elsewhere(NULL, true);
  else if (!strcmp(mode, "none-unwaited"))
    elsewhere(NULL, false);
  else if (!strcmp(mode, "callback"))
    callback();
  else if (!strncmp(mode, "capture-", 8))
    open_capture(mode[8] - '0', mode[9] == 't');
  else if (!strcmp(mode, "captures"))
    many_captures();
  else if (!strcmp(mode, "streams"))
    many_streams(3000);
  else if (!strcmp(mode, "contexts"))
    many_contexts();
  else if (!strcmp(mode, "first"))
    first_launches();
  else if (!strcmp(mode, "outlasts"))
    outlasts(streams[0]);
  else if (!strcmp(mode, "outlasts-legacy"))
    outlasts(NULL);
  else if (!strcmp(mode, "outlasts-own"))
    per_thread();
  else if (!strcmp(mode, "destroyed"))
    destroyed();
  else if (!strcmp(mode, "racing"))
    racing();
  else if (!strcmp(mode, "asked"))
    other_is_asked();
  else
    return 2;
  report("{\"truth_ns\": %llu}\n", (unsigned long long)truth);
  return stay();
}
