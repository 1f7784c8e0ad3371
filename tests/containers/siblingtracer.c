/* siblingtracer MIB: a process of a container traces a joined sibling, and overwrites what the sibling's interposer
 * reads. It wipes the usage page that is mapped there, tries to write the limits, and replaces them with a copy whose
 * limit is very large. Then the sibling allocates pieces of 16 MiB, up to MIB, as any program does. Prints the outcome
 * as JSON (`usage` and `limits` are 0 or an errno), and waits for EOF on standard input. For x86-64. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api/gs_cuda.h"
#include "page/gs_page.h"

CUresult cuInit(unsigned);
CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);

enum { PIECE_MIB = 16 };

struct answer {
  int joined, mib, last;
};

/* Joins and reports it; allocates on command. */
static void sibling(int mib, int in, int out) {
  struct answer answer = {0};
  CUcontext context;
  CUdeviceptr memory;
  char go;
  answer.joined = (int)cuInit(0);
  if (answer.joined == 0)
    answer.joined = (int)cuDevicePrimaryCtxRetain(&context, 0);
  if (answer.joined == 0)
    answer.joined = (int)cuCtxSetCurrent(context);
  if (write(out, &answer, sizeof answer) != (ssize_t)sizeof answer || read(in, &go, 1) != 1)
    _exit(1);
  while (answer.mib < mib && (answer.last = (int)cuMemAlloc_v2(&memory, (size_t)PIECE_MIB << 20)) == 0)
    answer.mib += PIECE_MIB;
  if (write(out, &answer, sizeof answer) != (ssize_t)sizeof answer)
    _exit(1);
  for (;;)
    pause();
}

/* The address at which a process maps a file of the grant; 0: it does not. */
static uintptr_t mapped(pid_t pid, const char *name) {
  char path[64], line[4352];
  uintptr_t found = 0;
  snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
  FILE *maps = fopen(path, "re");
  while (maps && !found && fgets(line, sizeof line, maps)) {
    line[strcspn(line, "\n")] = 0;
    const char *slash = strrchr(line, '/');
    if (slash && strcmp(slash + 1, name) == 0)
      found = (uintptr_t)strtoull(line, NULL, 16);
  }
  if (maps)
    fclose(maps);
  return found;
}

/* Returns 0 or an errno. */
static int overwrite(int memory, uintptr_t at, const void *with, size_t size) {
  return pwrite(memory, with, size, (off_t)at) == (ssize_t)size ? 0 : errno;
}

/* Makes a process that waits in a system call map fresh memory at an address. Returns 0 or an errno. */
static int map_there(pid_t pid, uintptr_t at, size_t size) {
  struct user_regs_struct before, call;
  int status;
  if (ptrace(PTRACE_ATTACH, pid, NULL, NULL) < 0)
    return errno;
  if (waitpid(pid, &status, 0) < 0 || ptrace(PTRACE_GETREGS, pid, NULL, &before) < 0)
    return errno;
  call = before;
  call.rip -= 2; /* back to the syscall instruction, which has 2 bytes */
  call.orig_rax = (unsigned long long)-1;
  call.rax = SYS_mmap;
  call.rdi = at;
  call.rsi = size;
  call.rdx = PROT_READ | PROT_WRITE;
  call.r10 = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
  call.r8 = (unsigned long long)-1;
  call.r9 = 0;
  if (ptrace(PTRACE_SETREGS, pid, NULL, &call) < 0 || ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL) < 0 ||
      waitpid(pid, &status, 0) < 0 || ptrace(PTRACE_GETREGS, pid, NULL, &call) < 0 ||
      ptrace(PTRACE_SETREGS, pid, NULL, &before) < 0 || ptrace(PTRACE_DETACH, pid, NULL, NULL) < 0)
    return errno;
  return call.rax == at ? 0 : EFAULT;
}

int main(int argc, char **argv) {
  static char nothing[sizeof(struct gs_usage) - offsetof(struct gs_usage, slot)];
  static struct gs_limits limits;
  int to[2], from[2], mib = argc > 1 ? atoi(argv[1]) : PIECE_MIB;
  struct answer answer;
  char path[64];
  if (pipe(to) != 0 || pipe(from) != 0)
    return 1;
  pid_t pid = fork();
  if (pid == 0)
    sibling(mib, to[0], from[1]);
  if (read(from[0], &answer, sizeof answer) != (ssize_t)sizeof answer)
    return 1;
  snprintf(path, sizeof path, "/proc/%d/mem", (int)pid);
  int memory = open(path, O_RDWR | O_CLOEXEC);
  uintptr_t usage = mapped(pid, "usage"), page = mapped(pid, "limits");
  if (memory < 0 || pread(memory, &limits, sizeof limits, (off_t)page) != (ssize_t)sizeof limits)
    return 1;
  for (int i = 0; i < GS_MAX_DEVICES; i++)
    limits.device[i].memory_bytes = UINT64_C(1) << 40;
  int wiped = overwrite(memory, usage + offsetof(struct gs_usage, slot), nothing, sizeof nothing);
  int written = overwrite(memory, page, &limits, sizeof limits);
  int replaced = map_there(pid, page, sizeof limits);
  if (replaced == 0)
    replaced = overwrite(memory, page, &limits, sizeof limits);
  if (write(to[1], "x", 1) != 1 || read(from[0], &answer, sizeof answer) != (ssize_t)sizeof answer)
    return 1;
  printf("{\"joined\": %d, \"usage\": %d, \"limits\": %d, \"replaced\": %d, \"mib\": %d, \"last\": %d}\n",
         answer.joined, wiped, written, replaced, answer.mib, answer.last);
  fflush(stdout);
  while (read(0, path, sizeof path) > 0)
    ;
  return 0;
}
