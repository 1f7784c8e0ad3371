/* A program that does everything at once, chosen by a seed:
 *   mixed SEED PTX MS GAPS [WITHOUT...]
 * 1 to 4 threads in 1 or 2 contexts, each with its own streams and graphs, launch kernels of heavy-tailed durations (10
 * us to 20 ms), singly, in bursts, and in graphs that were captured or built by hand. They leave captures open, and
 * wait in every way or not at all, also for streams of other threads; with GAPS 1 they also pause. WITHOUT leaves
 * out "graphs", "captures", "threads", "streams" or "polls". Prints one JSON line when it starts and one when all is
 * done. */
#include <math.h>

#include "program.h"

enum { THREADS = 4, CONTEXTS = 2, STREAMS = 3, GRAPHS = 2, WAYS = 8, SHORTEST_NS = 10000, LONGEST_NS = 20000000 };

struct place {
  CUcontext context;
  CUfunction kernel[2];
  CUdeviceptr memory;
};

struct worker {
  pthread_t thread;
  uint64_t seed;
  const struct place *place;
  CUstream stream[STREAMS], capturing; /* `capturing` is used for captures only */
  CUevent event;
  CUgraphExec graph[GRAPHS];
  int open; /* steps until the open capture ends; 0: none is open */
};

static struct place places[CONTEXTS];
static struct worker workers[THREADS];
static uint64_t until;
static int threads;
static bool gaps, no_graphs, no_captures, no_streams, no_polls;

static double chance(struct worker *w) { /* 0..1 */
  w->seed = w->seed * 6364136223846793005u + 1442695040888963407u;
  return (double)(w->seed >> 33) / (double)(1u << 31);
}

static int one_of(struct worker *w, int n) { return (int)(chance(w) * n); }

static CUstream stream_of(struct worker *w, const struct worker *owner) {
  int which = one_of(w, STREAMS);
  return owner->stream[no_streams ? 1 : which];
}

static CUstream any_stream(struct worker *w) { return stream_of(w, w); }

/* A stream of any thread in the same context. */
static CUstream shared_stream(struct worker *w) {
  const struct worker *owner = &workers[one_of(w, threads)];
  return stream_of(w, owner->place == w->place ? owner : w);
}

static uint64_t length(struct worker *w) { /* a duration in ns, Pareto distributed */
  double ns = SHORTEST_NS * pow(1 / (1 - chance(w)), 1 / 0.9);
  return ns > LONGEST_NS ? LONGEST_NS : (uint64_t)ns;
}

static void launch(struct worker *w, CUstream stream) {
  uint64_t ns = length(w);
  void *arguments[] = {&ns};
  OK(cuLaunchKernel(w->place->kernel[one_of(w, 2)], 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL));
}

static void replace(struct worker *w, int which, CUgraph graph) {
  if (w->graph[which])
    OK(cuGraphExecDestroy(w->graph[which]));
  OK(cuGraphInstantiateWithFlags(&w->graph[which], graph, 0));
  OK(cuGraphDestroy(graph));
}

static void build(struct worker *w) {
  CUgraph graph;
  CUgraphNode node, before;
  OK(cuGraphCreate(&graph, 0));
  for (int i = 0, n = 1 + one_of(w, 4); i < n; i++) {
    uint64_t ns = length(w);
    void *arguments[] = {&ns};
    CUDA_KERNEL_NODE_PARAMS params = {w->place->kernel[i & 1], 1, 1, 1, 1, 1, 1, 0, arguments, NULL, NULL, NULL};
    OK(cuGraphAddKernelNode_v2(&node, graph, i ? &before : NULL, i > 0, &params));
    before = node;
  }
  replace(w, 0, graph);
}

/* A wait for the context by another thread ends a capture. */
static void end_capture(struct worker *w) {
  CUgraph graph = NULL;
  CUresult result = cuStreamEndCapture(w->capturing, &graph);
  w->open = 0;
  if (result == CUDA_SUCCESS)
    replace(w, 1, graph);
  else if (result < 900 || result > 909)
    OK(result);
}

static void capture(struct worker *w) {
  if (w->open > 0) {
    if (--w->open == 0)
      end_capture(w);
    return;
  }
  OK(cuStreamBeginCapture_v2(w->capturing, 2 /* relaxed */));
  for (int i = 0, n = 1 + one_of(w, 4); i < n; i++) {
    uint64_t ns = length(w);
    void *arguments[] = {&ns};
    CUresult result = cuLaunchKernel(w->place->kernel[0], 1, 1, 1, 1, 1, 1, 0, w->capturing, arguments, NULL);
    if (result < 900 || result > 909)
      OK(result);
  }
  w->open = 1 + one_of(w, 20);
}

static void await(struct worker *w, CUstream stream) {
  int way = one_of(w, WAYS);
  CUresult result;
  char byte;
  if (no_polls && (way == 3 || way == 4))
    way = 0;
  if (way == 0) {
    OK(cuStreamSynchronize(stream));
  } else if (way == 1) {
    result = cuCtxSynchronize();
    if (result < 900 || result > 909)
      OK(result);
  } else if (way == 2) {
    OK(cuEventRecord(w->event, stream));
    OK(cuEventSynchronize(w->event));
  } else if (way == 3) {
    while (cuStreamQuery(stream) == CUDA_ERROR_NOT_READY)
      usleep(20);
  } else if (way == 4) {
    OK(cuEventRecord(w->event, stream));
    while (cuEventQuery(w->event) == CUDA_ERROR_NOT_READY)
      usleep(20);
  } else if (way == 5) {
    OK(cuMemcpyDtoH_v2(&byte, w->place->memory, 1));
  } /* any other way: no wait */
}

static void step(struct worker *w) {
  CUstream stream = any_stream(w);
  int what = one_of(w, 10);
  if (what == 0 && !no_graphs) {
    build(w);
    OK(cuGraphLaunch(w->graph[0], stream));
  } else if (what <= 2 && !no_graphs) {
    CUgraphExec graph = w->graph[one_of(w, GRAPHS)];
    if (graph)
      OK(cuGraphLaunch(graph, stream));
  } else if (what == 3) {
    for (int i = 0, n = 1 + one_of(w, 16); i < n; i++)
      launch(w, shared_stream(w));
  } else {
    launch(w, stream);
  }
  if (!no_captures && (w->open > 0 || one_of(w, 50) == 0))
    capture(w);
  if (one_of(w, 3) == 0)
    await(w, one_of(w, 2) ? stream : shared_stream(w));
  if (gaps && one_of(w, 4) == 0)
    usleep((useconds_t)(length(w) / 1000 * 5));
}

static void *work(void *argument) {
  struct worker *w = argument;
  OK(cuCtxSetCurrent(w->place->context));
  while (now() < until)
    step(w);
  if (w->open > 0)
    end_capture(w);
  for (int i = 0; i < STREAMS; i++)
    OK(cuStreamSynchronize(w->stream[i]));
  return NULL;
}

static void make_place(struct place *place, const char *ptx_path, bool first) {
  if (first) {
    start(ptx_path);
    place->context = context;
    memcpy(place->kernel, kernels, sizeof kernels);
  } else {
    static char ptx[1 << 16];
    FILE *file = fopen(ptx_path, "r");
    CUmodule module;
    if (!file || !fread(ptx, 1, sizeof ptx - 1, file))
      exit(2);
    fclose(file);
    OK(cuCtxCreate_v2(&place->context, 0, 0));
    for (int i = 0; i < 2; i++) {
      OK(cuModuleLoadData(&module, ptx));
      OK(cuModuleGetFunction(&place->kernel[i], module, "spin_ns"));
    }
  }
  OK(cuMemAlloc_v2(&place->memory, 4096));
}

int main(int argc, char **argv) {
  struct worker main_worker = {0};
  int contexts;
  if (argc < 5)
    return 2;
  main_worker.seed = number(argv[1]) * 0x9e3779b97f4a7c15u + 1;
  gaps = atoi(argv[4]);
  for (int i = 0; i < 8; i++) { /* so that neighbouring seeds give different programs */
    chance(&main_worker);
    main_worker.seed ^= main_worker.seed >> 29;
  }
  threads = 1 + one_of(&main_worker, THREADS);
  contexts = 1 + one_of(&main_worker, CONTEXTS);
  for (int i = 5; i < argc; i++) {
    no_graphs |= !strcmp(argv[i], "graphs");
    no_captures |= !strcmp(argv[i], "captures");
    no_streams |= !strcmp(argv[i], "streams");
    no_polls |= !strcmp(argv[i], "polls");
    if (!strcmp(argv[i], "threads"))
      threads = contexts = 1;
  }
  for (int i = 0; i < contexts; i++)
    make_place(&places[i], argv[2], i == 0);
  for (int i = 0; i < threads; i++) {
    struct worker *w = &workers[i];
    w->place = &places[i % contexts];
    w->seed = main_worker.seed ^ (uint64_t)(i + 1) * 0xd1342543de82ef95u;
    OK(cuCtxSetCurrent(w->place->context));
    for (int k = 0; k < STREAMS; k++) /* one in three is a blocking one */
      OK(cuStreamCreate(&w->stream[k], k > 0));
    OK(cuStreamCreate(&w->capturing, 1));
    OK(cuEventCreate(&w->event, 2 /* no timing */));
  }
  report("{\"threads\": %d, \"contexts\": %d}\n", threads, contexts);
  until = now() + number(argv[3]) * 1000000;
  for (int i = 0; i < threads; i++)
    pthread_create(&workers[i].thread, NULL, work, &workers[i]);
  for (int i = 0; i < threads; i++)
    pthread_join(workers[i].thread, NULL);
  report("{\"done\": true}\n");
  return stay();
}
