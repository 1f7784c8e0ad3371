/* A program that wakes, works and sleeps: wakes PTX MS WAIT PAUSE_MS N NS [N NS ...]. For MS milliseconds it launches each
 * burst of N kernels of NS, waits after each, and sleeps for half to one and a half times PAUSE_MS. It waits by
 * WAIT: stream, event or context. Prints the device time of its kernels. */
#include "program.h"

static void wait_by(const char *way, CUevent event) {
  if (!strcmp(way, "stream")) {
    OK(cuStreamSynchronize(streams[0]));
  } else if (!strcmp(way, "event")) {
    OK(cuEventRecord(event, streams[0]));
    OK(cuEventSynchronize(event));
  } else {
    OK(cuCtxSynchronize());
  }
}

static void sleep_ns(double ns) {
  nanosleep(&(struct timespec){(time_t)(ns / 1e9), (long)(ns - (double)(time_t)(ns / 1e9) * 1e9)}, NULL);
}

int main(int argc, char **argv) {
  CUevent event;
  if (argc < 7)
    return 2;
  uint64_t ms = number(argv[2]), pause_ms = number(argv[4]);
  start(argv[1]);
  OK(cuEventCreate(&event, 2 /* no timing */));
  for (uint64_t began = now(); now() - began < ms * 1000000;) {
    for (int burst = 5; burst + 1 < argc; burst += 2) {
      for (uint64_t i = number(argv[burst]); i > 0; i--)
        spin(0, number(argv[burst + 1]), streams[0]);
      wait_by(argv[3], event);
    }
    sleep_ns((double)pause_ms * 1e6 * (0.5 + drand48()));
  }
  printf("{\"truth_ns\": %llu}\n", (unsigned long long)truth);
  return 0;
}
