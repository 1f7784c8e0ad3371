/* Waits and queries of some threads while others launch:
 *   races WAY PTX MS THREADS SHORT_NS LONG_NS PAUSE_US
 * One thread (THREADS, for WAY "launchers") launches kernels of SHORT_NS, every eighth of LONG_NS, PAUSE_US apart.
 * THREADS others repeatedly wait for that work or query it; for WAY "order" they launch too. Prints one JSON line when
 * it starts and one when all is done. */
#include "program.h"

enum { MOST = 8 };

static const char *way;
static uint64_t until, short_ns, long_ns;
static unsigned pause_us;
static CUstream beside, blocking;
static CUevent event, shared;

static bool is(const char *name) { return strcmp(way, name) == 0; }

/* The driver executes each of these calls while another thread launches. */
static void wait_once(CUevent own) {
  if (is("stream") || is("beside") || is("launchers"))
    OK(cuStreamSynchronize(streams[0]));
  else if (is("query"))
    cuStreamQuery(streams[0]);
  else if (is("context"))
    OK(cuCtxSynchronize());
  else if (is("legacy"))
    OK(cuStreamSynchronize(NULL));
  else if (is("shared"))
    OK(cuEventSynchronize(shared));
  else if (is("sharedquery"))
    cuEventQuery(shared);
  else {
    OK(cuEventRecord(own, streams[0]));
    if (is("event"))
      OK(cuEventSynchronize(own));
    else if (is("eventquery"))
      cuEventQuery(own);
    else
      exit(2);
  }
}

static void *waiter(void *argument) {
  CUevent own;
  OK(cuCtxSetCurrent(context));
  OK(cuEventCreate(&own, 3 /* blocking, no timing */));
  while (now() < until) {
    wait_once(own);
    usleep(50);
  }
  return argument;
}

static void launch(uint64_t n) {
  uint64_t ns = n % 8 == 7 ? long_ns : short_ns;
  CUstream stream = is("legacy") ? blocking : is("beside") && n % 2 ? beside : streams[0];
  launch_of(kernels[0], ns, stream);
  if (is("shared") || is("sharedquery"))
    OK(cuEventRecord(shared, stream));
  if (is("order")) {
    OK(cuEventRecord(event, stream));
    OK(cuStreamWaitEvent(beside, event, 0));
    launch_of(kernels[0], ns, beside);
  }
}

static void *launcher(void *argument) {
  OK(cuCtxSetCurrent(context));
  for (uint64_t n = 0; now() < until; n++) {
    launch(n);
    if (pause_us)
      usleep(pause_us);
  }
  return argument;
}

int main(int argc, char **argv) {
  pthread_t thread[2 * MOST];
  int threads, made = 0;
  if (argc < 8)
    return 2;
  way = argv[1];
  threads = atoi(argv[4]) < MOST ? atoi(argv[4]) : MOST;
  short_ns = number(argv[5]);
  long_ns = number(argv[6]);
  pause_us = (unsigned)atoi(argv[7]);
  start_as(argv[2], 0, CU_CTX_SCHED_BLOCKING_SYNC);
  OK(cuStreamCreate(&beside, 1));
  OK(cuStreamCreate(&blocking, 0));
  OK(cuEventCreate(&event, 2));
  OK(cuEventCreate(&shared, 3));
  report("{\"started\": true}\n");
  until = now() + number(argv[3]) * 1000000;
  for (int i = 0; i < threads; i++)
    pthread_create(&thread[made++], NULL, is("order") ? launcher : waiter, NULL);
  for (int i = 0; i < (is("launchers") ? threads : 1); i++)
    pthread_create(&thread[made++], NULL, launcher, NULL);
  while (made > 0)
    pthread_join(thread[--made], NULL);
  OK(cuCtxSynchronize());
  report("{\"done\": true}\n");
  return stay();
}
