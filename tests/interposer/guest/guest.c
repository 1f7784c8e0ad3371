/* Prints as JSON the process state that a program can observe: before its first CUDA call, and after calls that succeed
 * and fail. No setting has its default value, so that a reset is detected too. Linked with -lcuda. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fenv.h>
#include <locale.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include "sim_api.h"

extern char **environ;
static int errors_kept = 1;

static unsigned long mix(unsigned long sum, const void *bytes, size_t size) {
  for (const unsigned char *at = bytes, *end = at + size; at < end; at++)
    sum = sum * 33 + *at;
  return sum;
}

/* Handler, flags and mask of every signal. */
static unsigned long handlers(void) {
  unsigned long sum = 5381;
  for (int i = 1; i < NSIG; i++) {
    struct sigaction action;
    if (sigaction(i, NULL, &action))
      continue;
    sum = mix(sum, &action.sa_handler, sizeof action.sa_handler);
    sum = mix(sum, &action.sa_flags, sizeof action.sa_flags);
    for (int k = 1; k < NSIG; k++)
      sum = sum * 3 + (unsigned long)(sigismember(&action.sa_mask, k) == 1);
  }
  return sum;
}

static unsigned long blocked(void) {
  unsigned long sum = 0;
  sigset_t mask;
  pthread_sigmask(SIG_BLOCK, NULL, &mask);
  for (int i = 1; i < NSIG && i < 64; i++)
    sum |= (unsigned long)(sigismember(&mask, i) == 1) << i;
  return sum;
}

/* Limits, timers, scheduling, the alternate signal stack and the rounding mode, as one number. */
static unsigned long settings(void) {
  unsigned long sum = 5381;
  for (int i = 0; i < RLIM_NLIMITS; i++) {
    struct rlimit limit;
    if (getrlimit(i, &limit) == 0)
      sum = mix(sum, &limit, sizeof limit);
  }
  for (int which = ITIMER_REAL; which <= ITIMER_PROF; which++) {
    struct itimerval timer;
    getitimer(which, &timer);
    sum = mix(sum, &timer.it_interval, sizeof timer.it_interval);
  }
  stack_t stack;
  cpu_set_t cpus;
  char name[17] = "";
  CPU_ZERO(&cpus);
  sigaltstack(NULL, &stack);
  sched_getaffinity(0, sizeof cpus, &cpus);
  prctl(PR_GET_NAME, name);
  sum = mix(mix(mix(sum, &stack.ss_sp, sizeof stack.ss_sp), &cpus, sizeof cpus), name, sizeof name);
  int words[] = {fegetround(), getpriority(PRIO_PROCESS, 0), sched_getscheduler(0), prctl(PR_GET_DUMPABLE)};
  return mix(sum, words, sizeof words);
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
  char *cwd = getcwd(NULL, 0);
  umask(mask);
  for (char **each = environ; *each; each++)
    for (char *at = *each; *at; at++)
      environment = environment * 33 + (unsigned char)*at;
  printf("\"%s\": {\"umask\": %u, \"handlers\": %lu, \"threads\": %u, ", when, mask, handlers(), threads());
  printf("\"cwd\": \"%s\", \"environment\": %lu, \"blocked\": %lu, ", cwd, environment, blocked());
  printf("\"locale\": \"%s\", \"settings\": %lu, \"offset\": %ld, ", setlocale(LC_ALL, NULL), settings(),
         (long)lseek(STDIN_FILENO, 0, SEEK_CUR));
  printf("\"descriptors\": ");
  descriptors();
  printf("}, ");
  free(cwd);
}

static void call(CUresult result, CUresult expected) {
  errors_kept = errors_kept && errno == 4242 && result == expected;
  errno = 4242;
}

static void handler(int signal) { (void)signal; }

static void leave_the_defaults(void) {
  static char stack[1 << 16];
  struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART | SA_ONSTACK};
  struct itimerval timer = {{1000, 7}, {1000, 7}};
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGUSR1);
  sigaddset(&mask, SIGTERM);
  sigaddset(&action.sa_mask, SIGHUP);
  sigaction(SIGUSR2, &action, NULL);
  sigaction(SIGSEGV, &action, NULL);
  signal(SIGPIPE, SIG_IGN);
  pthread_sigmask(SIG_SETMASK, &mask, NULL);
  sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = sizeof stack}, NULL);
  setitimer(ITIMER_REAL, &timer, NULL);
  setlocale(LC_ALL, "C.UTF-8");
  fesetround(FE_UPWARD);
  umask(027);
  setenv("GUEST", "of honour", 1);
  prctl(PR_SET_NAME, "guest-renamed");
  if (chdir("/proc"))
    exit(2);
}

static const char ptx[] = ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry spin_ns(.param .u64 "
                          "spin_ns_param_0)\n{\n  ret;\n}\n";

int main(void) {
  CUcontext context;
  CUmodule module;
  CUfunction function;
  CUdeviceptr address;
  size_t one, two;
  uint64_t ns = 1000;
  void *arguments[] = {&ns};
  leave_the_defaults();
  printf("{");
  look("before");
  errno = 4242;
  call(cuInit(0), CUDA_SUCCESS);
  call(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  call(cuCtxSetCurrent(context), CUDA_SUCCESS);
  call(cuMemAlloc_v2(&address, 4096), CUDA_SUCCESS);
  call(cuModuleLoadData(&module, ptx), CUDA_SUCCESS);
  call(cuModuleGetFunction(&function, module, "spin_ns"), CUDA_SUCCESS);
  for (int i = 0; i < 100; i++)
    call(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL), CUDA_SUCCESS);
  call(cuCtxSynchronize(), CUDA_SUCCESS);
  call(cuMemFree_v2(address), CUDA_SUCCESS);
  call(cuMemAlloc_v2(&address, (size_t)1 << 46), CUDA_ERROR_OUT_OF_MEMORY);
  call(cuMemGetInfo_v2(&one, &two), CUDA_SUCCESS);
  look("after");
  printf("\"errno_kept\": %d}\n", errors_kept);
  return 0;
}
