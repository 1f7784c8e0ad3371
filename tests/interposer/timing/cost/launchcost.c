/* The cost of a launch through the interposer: launchcost BESIDE DRIVER STREAM [FUNCTIONS]. One thread launches in
 * batches, alternately through the function that the program is linked with and directly into BESIDE, another copy of
 * the driver; FUNCTIONS kernels in turn (default 1). Also counts the system calls of launches through the linked
 * function, and the events that DRIVER was asked to record. Prints one JSON line. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>

#include "api/gs_cuda.h"

CUresult cuInit(unsigned int);
CUresult cuCtxCreate_v2(CUcontext *, unsigned int, CUdevice);
CUresult cuStreamCreate(CUstream *, unsigned int);
typedef CUresult launch_function(CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
                                 unsigned int, unsigned int, CUstream, void **, void **);
launch_function cuLaunchKernel;

enum { BATCH = 100, BATCHES = 20000, WATCHED = 100000 };

static double costs[2][BATCHES];
static volatile sig_atomic_t calls;
static uintptr_t functions = 1;

static uint64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static double batch(launch_function *launch, CUstream stream, int n) {
  uint64_t began = now();
  for (int i = 0; i < n; i++)
    if (launch((CUfunction)(0x1000 + ((uintptr_t)i % functions << 8)), 64, 1, 1, 128, 1, 1, 0, stream, NULL, NULL) !=
        CUDA_SUCCESS)
      exit(1);
  return (double)(now() - began) / n;
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* A system call stopped by the filter: counted, and answered as if the kernel did not implement it. */
static void stopped(int signal, siginfo_t *info, void *context) {
  (void)signal, (void)context;
  if (info->si_syscall != SYS_rt_sigreturn)
    calls++;
}

static void *watched(void *stream) {
  struct sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 2, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
  static int made;
  batch(cuLaunchKernel, stream, 1000); /* the first-time work of this thread */
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
    exit(3);
  batch(cuLaunchKernel, stream, WATCHED);
  made = (int)calls;
  syscall(SYS_getpid); /* checks that the trap works */
  if (calls != made + 1)
    made = -1;
  syscall(SYS_exit, 0);
  return &made;
}

int main(int argc, char **argv) {
  struct sigaction action = {.sa_sigaction = stopped, .sa_flags = SA_SIGINFO};
  launch_function *beside = NULL;
  CUcontext context;
  CUstream stream;
  pthread_t thread;
  void *driver = argc > 3 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  unsigned *records = argc > 3 ? dlsym(dlopen(argv[2], RTLD_NOW | RTLD_LOCAL), "fake_records") : NULL;
  if (driver)
    *(void **)&beside = dlsym(driver, "cuLaunchKernel");
  if (!records || !beside || beside == cuLaunchKernel)
    return 2;
  if (cuInit(0) || cuCtxCreate_v2(&context, 0, 0) || cuStreamCreate(&stream, 1))
    return 2;
  if (!strcmp(argv[3], "default"))
    stream = NULL;
  if (argc > 4)
    functions = strtoul(argv[4], NULL, 10);
  batch(cuLaunchKernel, stream, 20000);
  for (int i = 0; i < BATCHES; i++) {
    costs[i & 1][i] = batch(i & 1 ? beside : cuLaunchKernel, stream, BATCH);
    costs[~i & 1][i] = batch(i & 1 ? cuLaunchKernel : beside, stream, BATCH);
  }
  for (int k = 0; k < 2; k++)
    qsort(costs[k], BATCHES, sizeof costs[k][0], ascending);
  sigaction(SIGSYS, &action, NULL);
  pthread_create(&thread, NULL, watched, stream);
  pthread_join(thread, NULL);
  printf("{\"ours_ns\": %.2f, \"bare_ns\": %.2f, \"calls\": %d, \"records\": %u}\n", costs[0][BATCHES / 2],
         costs[1][BATCHES / 2], (int)calls - 1, *records);
  return 0;
}
