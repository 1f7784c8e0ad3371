/* A program under test: ends WAIT PTX USUAL_NS OTHER_NS ROUNDS. Lets the meter learn a kernel's duration, then runs one
 * of OTHER_NS; reports when it was launched and when the program knew that it was complete. Prints one JSON line per
 * round; a line on stdin starts the next round. */
#include "program.h"

enum { USUAL = 6, POLL_NS = 3000000 };

static CUevent event;
static CUdeviceptr word;

static void wait_by(const char *how) {
  int taken;
  if (!strcmp(how, "stream"))
    OK(cuStreamSynchronize(streams[0]));
  else if (!strcmp(how, "context"))
    OK(cuCtxSynchronize());
  else if (!strcmp(how, "event"))
    OK(cuEventSynchronize(event));
  else if (!strcmp(how, "copy"))
    OK(cuMemcpyDtoH_v2(&taken, word, sizeof taken));
  else if (!strcmp(how, "query"))
    while (cuStreamQuery(streams[0]) != CUDA_SUCCESS) {
    }
  else if (!strcmp(how, "event_query"))
    while (cuEventQuery(event) != CUDA_SUCCESS) {
    }
  else
    exit(2);
}

static void work(const char *how, uint64_t ns) {
  spin(0, ns, !strcmp(how, "copy") ? NULL : streams[0]); /* the copy uses the legacy stream */
  OK(cuEventRecord(event, streams[0]));
}

int main(int argc, char **argv) {
  if (argc < 6)
    return 2;
  const char *how = argv[1];
  uint64_t usual = number(argv[3]), other = number(argv[4]);
  start(argv[2]);
  OK(cuEventCreate(&event, 2 /* no timing */));
  OK(cuMemAlloc_v2(&word, 4096));
  for (int round = 0; round < atoi(argv[5]); round++) {
    uint64_t launched, returned;
    for (int i = 0; i < USUAL; i++) {
      work(how, usual);
      wait_by(how);
    }
    launched = now();
    work(how, other);
    wait_by(how);
    returned = now();
    while (now() < returned + POLL_NS)
      wait_by(how); /* a repeated query is not work */
    report("{\"launched_ns\": %llu, \"returned_ns\": %llu}\n", (unsigned long long)launched,
           (unsigned long long)returned);
    while (getchar() != '\n') {
    }
  }
  return 0;
}
