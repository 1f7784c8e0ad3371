/* Typical ways in which programs use a driver library: lives MODE [LIBRARY]. Prints the result of each call, so that
 * runs with and without gpushare can be compared. With OVER=BYTES in the environment, it allocates BYTES at the end of
 * each use. Built with -DLINKED it is linked with -lcuda, otherwise it opens LIBRARY. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/single_threaded.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* clang-format off */
#define API(X) \
  X(cuInit, (unsigned)) \
  X(cuDevicePrimaryCtxRetain, (void **, int)) \
  X(cuDevicePrimaryCtxRelease_v2, (int)) \
  X(cuCtxSetCurrent, (void *)) \
  X(cuCtxSynchronize, (void)) \
  X(cuMemAlloc_v2, (uint64_t *, size_t)) \
  X(cuMemFree_v2, (uint64_t)) \
  X(cuMemGetInfo_v2, (size_t *, size_t *)) \
  X(cuModuleLoadData, (void **, const void *)) \
  X(cuModuleGetFunction, (void **, void *, const char *)) \
  X(cuModuleUnload, (void *)) \
  X(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **))
/* clang-format on */

#define MEMBER(name, parameters) int(*name) parameters;
struct api {
  API(MEMBER)
};

#ifdef LINKED
#define DECLARE(name, parameters) int name parameters;
API(DECLARE)
#endif

static const char ptx[] = ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry spin_ns(.param .u64 "
                          "spin_ns_param_0)\n{\n  ret;\n}\n";
static struct api cuda;
static const char *library = "libcuda.so.1";

static void bind_api(struct api *api, void *handle) {
#ifdef LINKED
  if (!handle) {
#define LINK(name, parameters) api->name = name;
    API(LINK)
    return;
  }
#endif
  if (!handle) {
    printf("cannot open %s: %s\n", library, dlerror());
    exit(9);
  }
#define FIND(name, parameters) *(void **)&api->name = dlsym(handle, #name);
  API(FIND)
}

static void over(const struct api *api, const char *who) {
  uint64_t at;
  size_t left, all;
  if (!getenv("OVER"))
    return;
  printf("%s over %d", who, api->cuMemAlloc_v2(&at, strtoull(getenv("OVER"), NULL, 10)));
  printf(" info %d", api->cuMemGetInfo_v2(&left, &all));
  printf(" total %zu\n", all);
}

/* A complete small program; prints all results on one line. Returns 0 on success. */
static int use(const struct api *api, const char *who) {
  void *context = NULL, *module = NULL, *function = NULL;
  uint64_t at = 0, ns = 50000;
  void *arguments[] = {&ns};
  int r[10] = {0}, sum = 0;
  r[0] = api->cuInit(0);
  r[1] = api->cuDevicePrimaryCtxRetain(&context, 0);
  r[2] = r[1] ? r[1] : api->cuCtxSetCurrent(context);
  r[3] = api->cuMemAlloc_v2(&at, 1 << 20);
  r[4] = api->cuModuleLoadData(&module, ptx);
  r[5] = r[4] ? r[4] : api->cuModuleGetFunction(&function, module, "spin_ns");
  for (int i = 0; i < 20 && !r[5] && !r[6]; i++)
    r[6] = api->cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL);
  r[7] = api->cuCtxSynchronize();
  r[8] = r[4] ? r[4] : api->cuModuleUnload(module);
  r[9] = r[3] ? r[3] : api->cuMemFree_v2(at);
  printf("%s", who);
  for (int i = 0; i < 10; i++) {
    printf(" %d", r[i]);
    sum += r[i];
  }
  printf("\n");
  if (sum == 0)
    over(api, who);
  fflush(stdout);
  return sum != 0;
}

static int threads_running(void) {
  DIR *tasks = opendir("/proc/self/task");
  int count = -2; /* . and .. */
  while (tasks && readdir(tasks))
    count++;
  closedir(tasks);
  return count;
}

static int wait_for(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* The child inherits the stdio buffers, so they must be empty at a fork. */
static pid_t forked(void) {
  fflush(stdout);
  return fork();
}

static int fork_first(void) { /* as in worker pools: CUDA in the children first, then in the parent */
  int bad = 0;
  for (int i = 0; i < 2; i++) {
    pid_t child = forked();
    if (child == 0)
      exit(use(&cuda, "child"));
    bad |= wait_for(child);
  }
  return bad | use(&cuda, "parent");
}

static int fork_untouched(void) {
  int bad = use(&cuda, "parent");
  pid_t child = forked();
  if (child == 0)
    exit(5);
  printf("child ended %d\n", wait_for(child));
  child = forked();
  if (child == 0)
    _exit(6);
  printf("child ended %d\n", wait_for(child));
  return bad | use(&cuda, "parent");
}

static int fork_after(void) { /* CUDA does not survive a fork: the driver reports that, and the parent continues */
  int bad = use(&cuda, "parent");
  pid_t child = forked();
  if (child == 0)
    exit(use(&cuda, "child"));
  printf("child ended %d\n", wait_for(child));
  return bad | use(&cuda, "parent");
}

static int vfork_exec(char *self) {
  int bad = use(&cuda, "parent");
  fflush(stdout);
  pid_t child = vfork();
  if (child == 0) {
    execl(self, self, "use", library, (char *)NULL);
    _exit(127);
  }
  printf("child ended %d\n", wait_for(child));
  return bad | use(&cuda, "parent");
}

static int exec_again(char *self) {
  use(&cuda, "before");
  execl(self, self, "use", library, (char *)NULL);
  return 127;
}

/* atfork handlers do not run for it. The child only queries, as the driver itself does not know about such children. */
static int raw_clone(void) {
  void *context;
  uint64_t at = 0;
  int bad = cuda.cuInit(0) | cuda.cuDevicePrimaryCtxRetain(&context, 0);
  bad |= cuda.cuCtxSetCurrent(context) | cuda.cuMemAlloc_v2(&at, 3 << 20);
  fflush(stdout);
  for (int i = 0; i < 5; i++) {
    pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    if (child == 0) {
      int answer = cuda.cuInit(0);
      if (i == 3)
        raise(SIGKILL);
      if (i == 4)
        abort();
      _exit(answer);
    }
    printf("child ended %d\n", wait_for(child));
  }
  printf("free %d\n", cuda.cuMemFree_v2(at));
  return bad | use(&cuda, "parent");
}

static int cycles(void) {
  int bad = 0;
  for (int i = 0; i < 100; i++) {
    struct api each;
    void *handle = dlopen(library, i & 1 ? RTLD_NOW : RTLD_LAZY | RTLD_GLOBAL);
    bind_api(&each, handle);
    bad |= each.cuInit(0);
    if (i % 25 == 24)
      bad |= use(&each, "cycle");
    bad |= dlclose(handle);
  }
  return bad;
}

static int deepbind(void) {
  struct api each;
  bind_api(&each, dlopen(library, RTLD_NOW | RTLD_DEEPBIND));
  return use(&each, "deepbind");
}

static int new_namespace(void) {
  struct api each;
  bind_api(&each, dlmopen(LM_ID_NEWLM, library, RTLD_NOW));
  int bad = use(&each, "namespace");
  /* If this libc takes the program for single-threaded, its malloc takes no lock. */
  if (threads_running() > 1 && __libc_single_threaded)
    puts("the C library takes the program for single-threaded");
  return bad;
}

static void *in_thread(void *unused) {
  (void)unused;
  return (void *)(intptr_t)use(&cuda, "thread");
}

static int threads(void) { /* sequential, so that the output stays in order */
  intptr_t bad = 0;
  for (int i = 0; i < 3; i++) {
    pthread_t thread;
    void *result;
    if (pthread_create(&thread, NULL, in_thread, NULL))
      return 8;
    pthread_join(thread, &result);
    bad |= (intptr_t)result;
  }
  return (int)bad;
}

static void at_exit(void) { use(&cuda, "exiting"); }

int main(int argc, char **argv) {
  const char *mode = argc > 1 ? argv[1] : "use";
  if (argc > 2)
    library = argv[2];
  if (strcmp(mode, "none") == 0) {
    puts("no CUDA here");
    return 3;
  }
  if (strcmp(mode, "cycles") == 0)
    return cycles();
  if (strcmp(mode, "deepbind") == 0)
    return deepbind();
  if (strcmp(mode, "namespace") == 0)
    return new_namespace();
#ifdef LINKED
  bind_api(&cuda, NULL);
#else
  bind_api(&cuda, dlopen(library, RTLD_NOW));
#endif
  if (strcmp(mode, "fork-first") == 0)
    return fork_first();
  if (strcmp(mode, "fork-untouched") == 0)
    return fork_untouched();
  if (strcmp(mode, "fork-after") == 0)
    return fork_after();
  if (strcmp(mode, "vfork") == 0)
    return vfork_exec(argv[0]);
  if (strcmp(mode, "exec") == 0)
    return exec_again(argv[0]);
  if (strcmp(mode, "clone") == 0)
    return raw_clone();
  if (strcmp(mode, "threads") == 0)
    return threads();
  if (strcmp(mode, "atexit") == 0)
    atexit(at_exit);
  return use(&cuda, "use");
}
