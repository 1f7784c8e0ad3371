/* What a program can see of its own process, printed as JSON: before its first CUDA call, and after calls that succeed and fail.
 * Linked with -lcuda. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gs_cuda.h"

CUresult cuInit(unsigned flags);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes);
CUresult cuMemFree_v2(CUdeviceptr address);
CUresult cuMemGetInfo_v2(size_t *free, size_t *total);

extern char **environ;
static int errors_kept = 1;

static unsigned handlers(void) {
  unsigned sum = 0;
  for (int i = 1; i < NSIG; i++) {
    struct sigaction action;
    if (sigaction(i, NULL, &action) == 0 && action.sa_handler != SIG_DFL)
      sum++;
  }
  return sum;
}

static unsigned threads(void) {
  unsigned count = 0;
  DIR *tasks = opendir("/proc/self/task");
  for (struct dirent *entry; tasks && (entry = readdir(tasks));)
    count += entry->d_name[0] != '.';
  closedir(tasks);
  return count;
}

static void descriptors(void) {
  printf("[");
  for (int fd = 0, first = 1; fd < 2048; fd++) {
    int flags = fcntl(fd, F_GETFD);
    if (flags < 0)
      continue;
    printf("%s[%d, %d]", first ? "" : ", ", fd, flags & FD_CLOEXEC);
    first = 0;
  }
  printf("]");
}

static void look(const char *when) {
  unsigned long environment = 5381;
  mode_t mask = umask(0);
  sigset_t blocked;
  char *cwd = getcwd(NULL, 0);
  umask(mask);
  for (char **each = environ; *each; each++)
    for (char *at = *each; *at; at++)
      environment = environment * 33 + (unsigned char)*at;
  sigprocmask(SIG_BLOCK, NULL, &blocked);
  printf("\"%s\": {\"umask\": %u, \"handlers\": %u, \"threads\": %u, \"cwd\": \"%s\", \"environment\": %lu, \"blocked\": %d, ", when,
         mask, handlers(), threads(), cwd, environment, sigismember(&blocked, SIGTERM) || sigismember(&blocked, SIGBUS));
  printf("\"descriptors\": ");
  descriptors();
  printf("}, ");
  free(cwd);
}

static void call(CUresult result, CUresult expected) {
  errors_kept = errors_kept && errno == 4242 && result == expected;
  errno = 4242;
}

int main(void) {
  CUcontext context;
  CUdeviceptr address;
  size_t one, two;
  printf("{");
  look("before");
  errno = 4242;
  call(cuInit(0), CUDA_SUCCESS);
  call(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  call(cuCtxSetCurrent(context), CUDA_SUCCESS);
  call(cuMemAlloc_v2(&address, 4096), CUDA_SUCCESS);
  call(cuMemFree_v2(address), CUDA_SUCCESS);
  call(cuMemAlloc_v2(&address, (size_t)1 << 46), CUDA_ERROR_OUT_OF_MEMORY);
  call(cuMemGetInfo_v2(&one, &two), CUDA_SUCCESS);
  look("after");
  printf("\"errno_kept\": %d}\n", errors_kept);
  return 0;
}
