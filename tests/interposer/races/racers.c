/* racers PROCESSES ATTEMPTS KILLS: processes of one grant with four threads each allocate and free as fast as they can,
 * until they have tried ATTEMPTS allocations in total. Meanwhile, KILLS times, one of them is killed and replaced.
 * Linked with -lcuda, independent of gpushare. Prints "attempts granted refused freed killed". Exit status: the number
 * of processes that failed. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "sim_api.h"

enum { THREADS = 4, HELD = 64, MIB = 1 << 20, PROCESSES = 64, LOOK_EVERY = 8 };

struct score {
  uint64_t wanted, attempts, granted, refused, freed;
};
static struct score *score; /* shared by all processes */
static CUcontext context;

static uint64_t read_word(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }
static void count(uint64_t *word) { __atomic_fetch_add(word, 1, __ATOMIC_RELAXED); }
static bool over(void) { return read_word(&score->attempts) >= score->wanted; }

static bool allocate(CUdeviceptr *at, unsigned *seed) {
  /* mostly sizes of which a few dozen fill the grant, and some of a few bytes that fill the rest */
  size_t bytes = 1 + (size_t)rand_r(seed) % (rand_r(seed) % 8 ? 64 * MIB : 4096);
  CUresult result = rand_r(seed) % 4 ? cuMemAlloc_v2(at, bytes) : cuMemAllocManaged(at, bytes, 1);
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY)
    _exit(3);
  count(&score->attempts);
  count(result == CUDA_SUCCESS ? &score->granted : &score->refused);
  return result == CUDA_SUCCESS;
}

static void give_back(CUdeviceptr at) {
  if (cuMemFree_v2(at) != CUDA_SUCCESS)
    _exit(4);
  count(&score->freed);
}

static void *race(void *argument) {
  unsigned seed = (unsigned)(uintptr_t)argument * 7919u + (unsigned)getpid();
  CUdeviceptr held[HELD];
  size_t available, total;
  int have = 0;
  cuCtxSetCurrent(context);
  while (!over()) {
    bool granted = have < HELD && allocate(&held[have], &seed);
    have += granted;
    if (have > 0 && (!granted || rand_r(&seed) % 3 == 0)) {
      int which = rand_r(&seed) % have;
      give_back(held[which]);
      held[which] = held[--have];
    }
    if (rand_r(&seed) % LOOK_EVERY == 0 && (cuMemGetInfo_v2(&available, &total) != CUDA_SUCCESS || available > total))
      _exit(5);
  }
  while (have > 0)
    give_back(held[--have]);
  return NULL;
}

static int child(void) {
  pthread_t threads[THREADS];
  CUdevice device;
  CUresult result;
  if (cuInit(0) != CUDA_SUCCESS || cuDeviceGet(&device, 0) != CUDA_SUCCESS)
    return 6;
  /* The other processes may hold all memory. */
  while ((result = cuCtxCreate_v2(&context, 0, device)) == CUDA_ERROR_OUT_OF_MEMORY && !over())
    usleep(1000);
  if (result != CUDA_SUCCESS)
    return result == CUDA_ERROR_OUT_OF_MEMORY ? 0 : 7;
  for (uintptr_t i = 0; i < THREADS; i++)
    pthread_create(&threads[i], NULL, race, (void *)(i + 1));
  for (int i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
  return 0;
}

static pid_t start(void) {
  pid_t pid = fork();
  if (pid == 0)
    _exit(child());
  return pid;
}

/* Returns 1 if the process failed. */
static int bury(pid_t pid, bool killed) {
  int status = 0;
  waitpid(pid, &status, 0);
  if (status == 0 || (killed && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL))
    return 0;
  fprintf(stderr, "process %d: status %x\n", pid, (unsigned)status);
  return 1;
}

int main(int argc, char **argv) {
  int processes = argc == 4 ? atoi(argv[1]) : 0, kills = argc == 4 ? atoi(argv[3]) : 0, bad = 0, killed = 0;
  pid_t pids[PROCESSES];
  if (processes < 2 || processes > PROCESSES)
    return 2;
  score = mmap(NULL, sizeof *score, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (score == MAP_FAILED)
    return 2;
  score->wanted = strtoull(argv[2], NULL, 10);
  for (int i = 0; i < processes; i++)
    pids[i] = start();
  while (killed < kills) {
    pid_t *victim = &pids[killed % processes];
    /* spread over the attempts, so that the number of kills does not depend on the speed of the machine */
    while (read_word(&score->attempts) < (uint64_t)(killed + 1) * score->wanted / (uint64_t)(kills + 1))
      usleep(500);
    kill(*victim, SIGKILL);
    bad += bury(*victim, true);
    *victim = start();
    killed++;
  }
  for (int i = 0; i < processes; i++)
    bad += bury(pids[i], false);
  printf("%lu %lu %lu %lu %d\n", (unsigned long)score->attempts, (unsigned long)score->granted,
         (unsigned long)score->refused, (unsigned long)score->freed, killed);
  return bad;
}
