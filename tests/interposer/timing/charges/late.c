/* A program that is late on purpose: late LATE_MS PTX LONG_MS COUNT. Each of its waits has a mark for a while after a
 * late one. So it lets a signal handler sleep in waits for short kernels, LATE_MS each time; then it makes COUNT
 * launches of LONG_MS of the same function, each when its waits have no marks any more. Prints one JSON line before
 * these, and one at the end. */
#include <signal.h>
#include <sys/time.h>

#include "program.h"

#define SHORT_NS UINT64_C(100000)

static volatile long sleep_ms; /* 0: not at all */

static void sleep_in_handler(int number) {
  struct timespec pause = {0, sleep_ms * 1000000};
  (void)number;
  nanosleep(&pause, NULL);
}

static void wait_for(uint64_t ns, long late_ms) {
  struct itimerval soon = {.it_value = {0, SHORT_NS / 2000}};
  spin(0, ns, streams[0]);
  sleep_ms = late_ms;
  if (late_ms > 0)
    setitimer(ITIMER_REAL, &soon, NULL);
  OK(cuStreamSynchronize(streams[0]));
}

int main(int argc, char **argv) {
  struct sigaction action = {.sa_handler = sleep_in_handler, .sa_flags = SA_RESTART};
  if (argc < 5)
    return 2;
  long late_ms = atol(argv[1]), long_ms = atol(argv[3]), count = atol(argv[4]);
  sigaction(SIGALRM, &action, NULL);
  start(argv[2]);
  for (int i = 0; i < 500; i++)
    wait_for(SHORT_NS, 0);
  wait_for(SHORT_NS, 1);
  for (int i = 0; i < 64; i++)
    wait_for(SHORT_NS, i % 4 == 0 ? late_ms : 0);
  report("{\"started\": true}\n");
  truth = 0;
  for (int i = 0; i < count; i++) {
    usleep(260000);
    for (int k = 0; k < 3; k++)
      wait_for(SHORT_NS, 0);
    wait_for((uint64_t)long_ms * 1000000, 0);
  }
  report("{\"truth_ns\": %llu}\n", (unsigned long long)truth);
  return stay();
}
