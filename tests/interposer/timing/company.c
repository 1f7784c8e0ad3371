/* One of several processes of a grant: company WAY PTX MS NS [GAP_NS [MORE_NS]]. For MS milliseconds from the line that it
 * reads from stdin on, it launches kernels of NS, after every 16th one of MORE_NS, and waits:
 *   deep   never; before it ends
 *   sync   for each, then GAP_NS go by on the host
 *   batch  for 16 launches, then GAP_NS
 * The function is known before. Prints a line before it reads and one at the end. */
#include "program.h"

static void pause_for(uint64_t ns) {
  struct timespec gap = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
  if (ns > 0)
    nanosleep(&gap, NULL);
}

int main(int argc, char **argv) {
  char line[8];
  if (argc < 5)
    return 2;
  bool deep = !strcmp(argv[1], "deep"), sync = !strcmp(argv[1], "sync");
  uint64_t ms = strtoull(argv[3], NULL, 10), ns = strtoull(argv[4], NULL, 10);
  uint64_t gap = argc > 5 ? strtoull(argv[5], NULL, 10) : 0, more = argc > 6 ? strtoull(argv[6], NULL, 10) : 0;
  start(argv[2]);
  for (int i = 0; i < 50; i++) {
    spin(0, ns, streams[0]);
    OK(cuStreamSynchronize(streams[0]));
  }
  printf("{\"ready\": true}\n");
  fflush(stdout);
  if (!fgets(line, sizeof line, stdin))
    return 2;
  for (uint64_t began = now(), n = 1; now() - began < ms * 1000000; n++) {
    spin(0, more > 0 && n % 16 == 0 ? more : ns, streams[0]);
    if (sync || (!deep && n % 16 == 0)) {
      OK(cuStreamSynchronize(streams[0]));
      pause_for(gap);
    }
  }
  OK(cuCtxSynchronize());
  printf("{\"done\": true}\n");
  fflush(stdout);
  return fgets(line, sizeof line, stdin) == NULL;
}
