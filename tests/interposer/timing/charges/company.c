/* One of several processes of a grant: company WAY PTX MS NS [GAP_NS [MORE_NS]]. Prints a line, reads one from stdin,
 * launches kernels of NS for MS milliseconds (every 16th of MORE_NS, if given), and prints a line at the end. It waits:
 *   deep   only at the end
 *   sync   for each launch, then pauses for GAP_NS
 *   batch  for every 16 launches, then pauses for GAP_NS
 * The meter knows the kernel's duration before the first line is printed. */
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
  uint64_t ms = number(argv[3]), ns = number(argv[4]);
  uint64_t gap = argc > 5 ? number(argv[5]) : 0, more = argc > 6 ? number(argv[6]) : 0;
  start(argv[2]);
  for (uint64_t i = 0; i < 8 || (i < 50 && i * ns < 500000000); i++) {
    spin(0, ns, streams[0]);
    OK(cuStreamSynchronize(streams[0]));
  }
  report("{\"ready\": true}\n");
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
  report("{\"done\": true}\n");
  return fgets(line, sizeof line, stdin) == NULL;
}
