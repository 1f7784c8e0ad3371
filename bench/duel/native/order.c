/* Orders between streams, and waits that show less than they seem to. */
#include "duel.h"

enum { DEPTH = 16 };

/* Pinned memory, which the device and the host both see. */
static volatile uint32_t *flag_at(CUdeviceptr *device) {
  void *host;
  MUST(cuMemHostAlloc(&host, 4096, 2));
  MUST(cuMemHostGetDevicePointer_v2(device, host, 0));
  return host;
}

/* The program learns from a flag in host memory that its work is done, and asks CUDA nothing. */
static void polled_flag(void) {
  CUdeviceptr device;
  volatile uint32_t *flag = flag_at(&device);
  CUstream stream = new_stream();
  begin();
  for (uint32_t i = 1;; i++) {
    spin(stream, 20 * MS);
    MUST(cuStreamWriteValue32_v2(stream, device, i, 0));
    while (*flag != i)
      sleep_ns(50 * US);
  }
}

static CUdeviceptr cover_flag;
static volatile uint32_t *cover_set;

static void *opens_cover(void *unused) {
  for (uint32_t round = 1;; round++) {
    sleep_ns(100 * (uint64_t)MS);
    *cover_set = round;
  }
  return unused;
}

/* One stream waits for a flag most of the time, with a little work behind it, so that the process seems to depend on
 * something outside; the other streams have the work. */
static void cover(void) {
  CUstream waiting = new_stream(), stream[4];
  cover_set = flag_at(&cover_flag);
  thread(opens_cover, NULL);
  for (int i = 0; i < 4; i++)
    stream[i] = new_stream();
  begin();
  for (uint32_t round = 1;; round++) {
    MUST(cuStreamWaitValue32_v2(waiting, cover_flag, round, 0));
    spin(waiting, 10 * US);
    while (*cover_set < round)
      for (int i = 0; i < 4; i++)
        spin(stream[i], 5 * MS);
    MUST(cuStreamSynchronize(waiting));
  }
}

/* The last stream of a chain of events gets the first work. */
static void event_order(void) {
  CUstream stream[DEPTH];
  CUevent event[DEPTH];
  for (int i = 0; i < DEPTH; i++) {
    stream[i] = new_stream();
    MUST(cuEventCreate(&event[i], CU_EVENT_DISABLE_TIMING));
  }
  begin();
  for (;;) {
    for (int i = 0; i < DEPTH; i++) {
      if (i)
        MUST(cuStreamWaitEvent(stream[i], event[i - 1], 0));
      spin(stream[i], 5 * MS);
      MUST(cuEventRecord(event[i], stream[i]));
    }
    MUST(cuEventSynchronize(event[DEPTH - 1]));
  }
}

/* An event behind long work is recorded again in an idle stream, and then counts as done. */
static void rerecorded(void (*record)(CUevent event, CUstream idle)) {
  CUstream stream = new_stream(), idle = new_stream();
  CUevent event, done;
  MUST(cuEventCreate(&event, 0));
  MUST(cuEventCreate(&done, CU_EVENT_DISABLE_TIMING));
  begin();
  for (;;) {
    spin(stream, 40 * MS);
    MUST(cuEventRecord(event, stream));
    record(event, idle);
    MUST(cuEventSynchronize(event));
    for (int i = 0; i < 35; i++)
      sleep_ns(MS);
    /* an event that was recorded after other work shows nothing about the stream as a whole */
    MUST(cuEventRecord(done, stream));
    spin(stream, 2 * US);
    MUST(cuEventSynchronize(done));
  }
}

/* By an attribute of a launch. */
static void by_launch(CUevent event, CUstream idle) {
  uint64_t ns = US;
  void *arguments[] = {&ns};
  CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT};
  attribute.value.event.event = event;
  CUlaunchConfig config = {.gridDimX = 1,
                           .gridDimY = 1,
                           .gridDimZ = 1,
                           .blockDimX = 1,
                           .blockDimY = 1,
                           .blockDimZ = 1,
                           .hStream = idle,
                           .attrs = &attribute,
                           .numAttrs = 1};
  MUST(cuLaunchKernelEx(&config, duel.spin, arguments, NULL));
}

/* By a node of a graph. */
static void by_graph(CUevent event, CUstream idle) {
  static CUgraphExec instance;
  CUgraphNode node;
  CUgraph graph;
  if (!instance) {
    MUST(cuGraphCreate(&graph, 0));
    MUST(cuGraphAddEventRecordNode(&node, graph, NULL, 0, event));
    MUST(cuGraphInstantiateWithFlags(&instance, graph, 0));
  }
  MUST(cuGraphLaunch(instance, idle));
}

static void event_by_launch(void) { rerecorded(by_launch); }
static void event_by_graph(void) { rerecorded(by_graph); }

static CUstream raced;
static CUcontext raced_context;
static CUfunction raced_spin;

/* In a context whose waits block: threads that spin would take the honest tenant's processor, and win by that. */
static void make_raced(void) {
  CUmodule module;
  MUST(cuCtxCreate_v2(&raced_context, CU_CTX_SCHED_BLOCKING_SYNC, 0));
  MUST(cuModuleLoadData(&module, program()));
  raced_spin = spin_of(module, "spin_ns");
  raced = new_stream();
}

/* Waits for the stream again and again, while the other thread submits to it. */
static void *waits(void *unused) {
  (void)unused;
  MUST(cuCtxSetCurrent(raced_context));
  for (;;) {
    MUST(cuStreamSynchronize(raced));
    sleep_ns(50 * US);
  }
  return NULL;
}

/* A wait is over when the work before it is; what was submitted meanwhile is not done by that. */
static void wait_race(void) {
  make_raced();
  for (int i = 0; i < 2; i++)
    thread(waits, NULL);
  begin();
  for (;;) {
    spin_as(raced_spin, raced, 5 * MS);
    sleep_ns(2 * MS);
  }
}

static void *asks(void *unused) {
  (void)unused;
  MUST(cuCtxSetCurrent(raced_context));
  for (;;) {
    cuStreamQuery(raced);
    sleep_ns(100 * US);
  }
  return NULL;
}

/* The same with questions, at the end of short work: the answer is of before the long launch. */
static void query_race(void) {
  make_raced();
  for (int i = 0; i < 2; i++)
    thread(asks, NULL);
  begin();
  for (;;) {
    spin_as(raced_spin, raced, 30 * US);
    sleep_ns(20 * US);
    spin_as(raced_spin, raced, 30 * MS);
    while (cuStreamQuery(raced) == CUDA_ERROR_NOT_READY)
      sleep_ns(MS);
  }
}

/* The long work is in the stream of a green context; the wait is for another. */
static void green_wait(void) {
  CUdevResource whole;
  CUdevResourceDesc description;
  CUgreenCtx green;
  CUcontext context;
  CUstream stream = new_stream(), inside;
  MUST(cuDeviceGetDevResource(0, &whole, CU_DEV_RESOURCE_TYPE_SM));
  MUST(cuDevResourceGenerateDesc(&description, &whole, 1));
  MUST(cuGreenCtxCreate(&green, description, 0, 1));
  MUST(cuCtxFromGreenCtx(&context, green));
  MUST(cuGreenCtxStreamCreate(&inside, green, CU_STREAM_NON_BLOCKING, 0));
  begin();
  for (unsigned long i = 0;; i++) {
    spin(stream, 20 * MS);
    MUST(cuCtxSetCurrent(context));
    MUST(cuCtxSynchronize());
    MUST(cuCtxSetCurrent(duel.context));
    spin(inside, 20 * MS);
    MUST(cuStreamSynchronize(stream));
    if (i % 4 == 3)
      MUST(cuStreamSynchronize(inside));
  }
}

/* A stream or a context ends with work in flight. */
static void stream_destroyed(void) {
  begin();
  for (unsigned long i = 0;; i++) {
    CUstream stream = new_stream();
    for (int k = 0; k < 4; k++)
      spin(stream, 5 * MS);
    MUST(cuStreamDestroy_v2(stream));
    if (i % 2)
      sleep_ns(20 * MS);
  }
}

static void context_destroyed(void) {
  begin();
  for (;;) {
    CUcontext context;
    CUmodule module;
    MUST(cuCtxCreate_v2(&context, 0, 0));
    MUST(cuModuleLoadData(&module, program()));
    spin_as(spin_of(module, "spin_ns"), NULL, 30 * MS);
    /* the driver of the simulator drops what still runs, so the program sees to it that little does */
    for (int i = 0; i < 28; i++)
      sleep_ns(MS);
    MUST(cuCtxDestroy_v2(context));
  }
}

const struct evasion order_evasions[] = {
    {.name = "polled-flag",
     .about = "20 ms kernels; the end is seen in host memory, CUDA is asked nothing",
     .run = polled_flag},
    {.name = "cover", .about = "one stream waits for a flag, as if for others; four have the work", .run = cover},
    {.name = "event-order", .about = "a chain of 16 streams by events", .run = event_order},
    {.name = "event-by-launch",
     .about = "an event behind long work is recorded again by a launch attribute",
     .run = event_by_launch},
    {.name = "event-by-graph",
     .about = "an event behind long work is recorded again by a graph",
     .run = event_by_graph},
    {.name = "wait-race", .about = "2 threads wait for a stream while another submits to it", .run = wait_race},
    {.name = "query-race", .about = "2 threads ask for a stream while another submits to it", .run = query_race},
    {.name = "green-wait", .about = "work in the primary context, waits for a green one", .run = green_wait},
    {.name = "stream-destroyed", .about = "streams are destroyed with work in flight", .run = stream_destroyed},
    {.name = "context-destroyed", .about = "contexts are destroyed with work in flight", .run = context_destroyed},
    {0},
};
