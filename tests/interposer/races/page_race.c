/* Processes race for a grant's memory with the interposer's own rule; some are killed in the middle.
 *   page_race PROCESSES SECONDS KILLS
 * `granted` counts memory held between a grant and its return, so it must never exceed the limit. Exit status 0 if it
 * never did, and if one process can get the whole limit after all deaths. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "page/page.h"

enum { LIMIT = 1000, MOST = 64 };

struct arena {
  struct gs_limits limits;
  struct gs_usage usage;
  int64_t granted;
  int64_t own[MOST]; /* each process's part; a death between the two updates makes `granted` too low */
  uint64_t grants, refusals, exceeded;
};

static struct arena *arena;

static void compete(uint32_t slot, unsigned seed) {
  struct gs_pages pages = {&arena->limits, &arena->usage};
  for (;;) {
    seed = seed * 1103515245u + 12345u;
    uint64_t bytes = 1 + (seed >> 8) % (LIMIT * 2 / 3);
    bool grows = seed >> 30 & 1; /* a call that takes half of what it might take */
    if ((grows ? gs_page_grow : gs_page_reserve)(&pages, slot, 0, bytes, seed >> 29 & 1) < 0) {
      __atomic_fetch_add(&arena->refusals, 1, __ATOMIC_RELAXED);
      continue;
    }
    __atomic_fetch_add(&arena->own[slot], (int64_t)bytes, __ATOMIC_SEQ_CST);
    if (__atomic_add_fetch(&arena->granted, (int64_t)bytes, __ATOMIC_SEQ_CST) > LIMIT)
      __atomic_fetch_add(&arena->exceeded, 1, __ATOMIC_SEQ_CST);
    __atomic_fetch_add(&arena->grants, 1, __ATOMIC_RELAXED);
    __atomic_fetch_sub(&arena->granted, (int64_t)bytes, __ATOMIC_SEQ_CST);
    __atomic_fetch_sub(&arena->own[slot], (int64_t)bytes, __ATOMIC_SEQ_CST);
    if (grows)
      gs_page_grown(&pages, slot, 0, bytes, bytes / 2);
    gs_page_give_back(&pages, slot, 0, grows ? bytes / 2 : bytes);
  }
}

static pid_t start(uint32_t slot) {
  pid_t pid = fork();
  if (pid == 0) {
    compete(slot, slot * 7919u + (unsigned)getpid());
    _exit(0);
  }
  return pid;
}

/* Does what the daemon does for a dead process. */
static void bury(uint32_t slot, pid_t pid) {
  kill(pid, SIGKILL);
  waitpid(pid, NULL, 0);
  __atomic_fetch_sub(&arena->granted, __atomic_exchange_n(&arena->own[slot], 0, __ATOMIC_SEQ_CST), __ATOMIC_SEQ_CST);
  memset(&arena->usage.slot[slot].device[0], 0, sizeof arena->usage.slot[slot].device[0]);
}

int main(int argc, char **argv) {
  int processes = argc > 1 ? atoi(argv[1]) : 4, kills = argc > 3 ? atoi(argv[3]) : 50;
  double seconds = argc > 2 ? atof(argv[2]) : 1;
  pid_t pids[MOST];
  if (processes < 1 || processes > MOST || kills < 1)
    return 2;
  arena = mmap(NULL, sizeof *arena, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (arena == MAP_FAILED)
    return 2;
  arena->limits.slots_high = (uint32_t)processes;
  arena->limits.device[0].memory_bytes = LIMIT;
  for (int i = 0; i < processes; i++)
    pids[i] = start((uint32_t)i);
  for (int i = 0; i < kills; i++) {
    struct timespec pause = {0, (long)(seconds * 1e9 / kills) % 1000000000};
    nanosleep(&pause, NULL);
    uint32_t victim = (uint32_t)i % (uint32_t)processes;
    bury(victim, pids[victim]);
    pids[victim] = start(victim);
  }
  for (int i = 0; i < processes; i++)
    bury((uint32_t)i, pids[i]);
  struct gs_pages pages = {&arena->limits, &arena->usage};
  int all = gs_page_reserve(&pages, 0, 0, LIMIT, true);
  printf("grants %llu refusals %llu exceeded %llu\n", (unsigned long long)arena->grants,
         (unsigned long long)arena->refusals, (unsigned long long)arena->exceeded);
  return arena->exceeded || all != 0 || arena->grants == 0;
}
