/* The wall and CPU time of a loop of launches: launchwall PTX LAUNCHES KERNEL_NS. One thread launches, and then waits
 * for the work. Prints one JSON line: wall time in ns until the last launch returned (launched) and until the work was
 * done (done); and, up to the last launch, the thread's CPU time (ran), how long it was runnable but another thread had
 * the CPU (ready), how often it slept (sleeps), and the CPU time of the process's other threads (others). */
#define _GNU_SOURCE
#include <sys/resource.h>
#include <sys/syscall.h>

#include "program.h"

static uint64_t on_clock(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

struct sample {
  uint64_t clock, thread, process, ready;
  long sleeps;
};

static struct sample take(void) {
  struct sample sample = {now(), on_clock(CLOCK_THREAD_CPUTIME_ID), on_clock(CLOCK_PROCESS_CPUTIME_ID), 0, 0};
  struct rusage usage;
  char path[64];
  unsigned long long ran, ready = 0;
  snprintf(path, sizeof path, "/proc/self/task/%ld/schedstat", syscall(SYS_gettid));
  FILE *file = fopen(path, "r");
  if (file && fscanf(file, "%llu %llu", &ran, &ready) == 2)
    sample.ready = ready;
  if (file)
    fclose(file);
  getrusage(RUSAGE_THREAD, &usage);
  sample.sleeps = usage.ru_nvcsw;
  return sample;
}

int main(int argc, char **argv) {
  if (argc < 4)
    return 2;
  unsigned long launches = strtoul(argv[2], NULL, 10), length = strtoul(argv[3], NULL, 10);
  start(argv[1]);
  for (int i = 0; i < 1000; i++)
    spin(0, length, streams[0]);
  OK(cuStreamSynchronize(streams[0]));
  struct sample began = take();
  for (unsigned long i = 0; i < launches; i++)
    spin(0, length, streams[0]);
  struct sample launched = take();
  OK(cuStreamSynchronize(streams[0]));
  struct sample done = take();
  uint64_t ran = launched.thread - began.thread, all = launched.process - began.process;
  printf("{\"launched\": %llu, \"done\": %llu, \"ran\": %llu, \"ready\": %llu, \"sleeps\": %ld, \"others\": %llu}\n",
         (unsigned long long)(launched.clock - began.clock), (unsigned long long)(done.clock - began.clock),
         (unsigned long long)ran, (unsigned long long)(launched.ready - began.ready), launched.sleeps - began.sleeps,
         (unsigned long long)(all > ran ? all - ran : 0));
  return 0;
}
