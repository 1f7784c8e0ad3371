/* Many processes of one grant, and their ends. Nothing of CUDA is used before a fork. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "duel.h"

static pid_t child(void (*run)(void)) {
  pid_t pid = fork();
  if (pid < 0)
    must_at(CUDA_ERROR_OUT_OF_MEMORY, "fork");
  if (pid == 0) {
    start(0);
    run();
    _exit(1);
  }
  return pid;
}

/* Keeps so many children running, each replaced when it ends. */
static void replace(int count, void (*run)(void)) {
  for (int i = 0; i < count; i++)
    child(run);
  sleep_ns(500 * (uint64_t)MS);
  begin();
  for (;;)
    if (wait(NULL) > 0)
      child(run);
}

static void launch_and_sleep(void) {
  CUstream stream = new_stream();
  spin(stream, 40 * MS);
  /* just under the kernel's length: what a dead process has queued is dropped */
  sleep_ns(38 * MS);
}

static void launch_and_exit(void) {
  launch_and_sleep();
  _exit(0);
}

static void launch_and_die(void) {
  launch_and_sleep();
  kill(getpid(), SIGKILL);
}

static void queue_and_die(void) {
  CUstream stream = new_stream();
  for (int i = 0; i < 40; i++)
    spin(stream, 5 * MS);
  sleep_ns(5 * MS);
  kill(getpid(), SIGKILL);
}

static void exits(void) { replace(4, launch_and_exit); }
static void dies(void) { replace(4, launch_and_die); }
static void queues_and_dies(void) { replace(4, queue_and_die); }

static void keep_busy(void) { flood(duel.spin, new_stream(), 2 * MS, 4); }

static void many(void) {
  for (int i = 0; i < 16; i++)
    child(keep_busy);
  sleep_ns(1000 * (uint64_t)MS);
  begin();
  for (;;)
    pause();
}

static void bursts(void) {
  CUstream stream = new_stream();
  for (;;) {
    for (int i = 0; i < 20; i++)
      spin(stream, 5 * MS);
    MUST(cuStreamSynchronize(stream));
  }
}

static void launch_a_little(void) {
  CUstream stream = new_stream();
  for (;;) {
    spin(stream, 10 * US);
    MUST(cuStreamSynchronize(stream));
    sleep_ns(200 * US);
  }
}

static void with_helpers(int count) {
  for (int i = 0; i < count; i++)
    child(launch_a_little);
  sleep_ns(500 * (uint64_t)MS);
  start(0);
  begin();
}

static void helpers(void) {
  with_helpers(4);
  flood(duel.spin, new_stream(), 400 * US, 4);
}

/* Lengths that differ by less than others' time slices. */
static void helpers_uneven(void) {
  with_helpers(2);
  CUstream stream = new_stream();
  for (;;)
    for (int i = 0; i < 16; i++) {
      spin(stream, i < 8 ? 10 * US : 150 * US);
      MUST(cuStreamSynchronize(stream));
    }
}

/* A process is stopped while its work runs, so that nothing of it answers the arbiter. */
static void stopped(void) {
  pid_t pid[2];
  for (int i = 0; i < 2; i++)
    pid[i] = child(bursts);
  sleep_ns(500 * (uint64_t)MS);
  begin();
  for (unsigned i = 0;; i++) {
    kill(pid[i % 2], SIGSTOP);
    sleep_ns(30 * MS);
    kill(pid[i % 2], SIGCONT);
    sleep_ns(5 * MS);
  }
}

const struct evasion process_evasions[] = {
    {.name = "exits",
     .about = "processes of one 40 ms kernel that exit before it is measured",
     .run = exits,
     .bare = true},
    {.name = "dies", .about = "processes of one 40 ms kernel that kill themselves", .run = dies, .bare = true},
    {.name = "queues-and-dies",
     .about = "processes that kill themselves with a full queue",
     .run = queues_and_dies,
     .bare = true},
    {.name = "processes-16", .about = "16 processes in one grant", .run = many, .bare = true},
    {.name = "helpers",
     .about = "four processes launch a little, as if the device were theirs too",
     .run = helpers,
     .bare = true},
    {.name = "helpers-uneven",
     .about = "kernels of uneven lengths, waited for, beside processes that launch a little",
     .run = helpers_uneven,
     .bare = true},
    {.name = "stopped",
     .about = "two processes are stopped in turn while their work runs",
     .run = stopped,
     .bare = true},
    {0},
};
