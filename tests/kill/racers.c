/* racers PROCESSES SECONDS: processes of one grant with four threads each allocate and free as fast as they can; half of the
 * processes are killed on the way. Linked with -lcuda, knows nothing of gpushare. Exit status: how many ended badly. */
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "gs_cuda.h"

CUresult cuInit(unsigned);
CUresult cuDeviceGet(CUdevice *, int);
CUresult cuCtxCreate_v2(CUcontext *, unsigned, CUdevice);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
CUresult cuMemAllocManaged(CUdeviceptr *, size_t, unsigned);
CUresult cuMemFree_v2(CUdeviceptr);
CUresult cuMemGetInfo_v2(size_t *, size_t *);

enum { THREADS = 4, HELD = 64, MIB = 1 << 20, PROCESSES = 64 };

static CUcontext context;
static time_t end;

static void *race(void *argument) {
  unsigned seed = (unsigned)(uintptr_t)argument * 7919u + (unsigned)getpid();
  CUdeviceptr held[HELD];
  size_t available, total;
  int count = 0;
  cuCtxSetCurrent(context);
  while (time(NULL) < end) {
    CUresult result = CUDA_SUCCESS;
    size_t bytes = 1 + (size_t)rand_r(&seed) % (rand_r(&seed) % 8 ? 64 * MIB : 4096);
    if (count < HELD) result = rand_r(&seed) % 4 ? cuMemAlloc_v2(&held[count], bytes) : cuMemAllocManaged(&held[count], bytes, 1);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY) _exit(3);
    if (result == CUDA_SUCCESS && count < HELD) count++;
    if (count > 0 && (result != CUDA_SUCCESS || count == HELD || rand_r(&seed) % 3 == 0)) {
      int which = rand_r(&seed) % count;
      if (cuMemFree_v2(held[which]) != CUDA_SUCCESS) _exit(4);
      held[which] = held[--count];
    }
    if (cuMemGetInfo_v2(&available, &total) != CUDA_SUCCESS || available > total) _exit(5);
  }
  while (count > 0) cuMemFree_v2(held[--count]);
  return NULL;
}

static int child(void) {
  pthread_t threads[THREADS];
  CUdevice device;
  CUresult result;
  if (cuInit(0) != CUDA_SUCCESS || cuDeviceGet(&device, 0) != CUDA_SUCCESS) return 6;
  /* The others may hold all there is. */
  while ((result = cuCtxCreate_v2(&context, 0, device)) == CUDA_ERROR_OUT_OF_MEMORY && time(NULL) < end) usleep(1000);
  if (result != CUDA_SUCCESS) return result == CUDA_ERROR_OUT_OF_MEMORY ? 0 : 7;
  for (uintptr_t i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, race, (void *)(i + 1));
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  return 0;
}

int main(int argc, char **argv) {
  int count = argc == 3 ? atoi(argv[1]) : 0, bad = 0;
  pid_t pids[PROCESSES];
  if (count < 2 || count > PROCESSES) return 2;
  end = time(NULL) + atoi(argv[2]);
  for (int i = 0; i < count; i++)
    if ((pids[i] = fork()) == 0) _exit(child());
  for (int i = 0; i < count / 2; i++) {
    usleep(300000);
    kill(pids[i], SIGKILL);
  }
  for (int i = 0; i < count; i++) {
    int status = 0;
    waitpid(pids[i], &status, 0);
    if (status != 0 && !(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)) {
      fprintf(stderr, "process %d: status %x\n", i, (unsigned)status);
      bad++;
    }
  }
  return bad;
}
