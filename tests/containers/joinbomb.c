/* joinbomb PROCESSES [all]: a fork bomb of joiners. PROCESSES processes start at once, and each joins the grant by its
 * first CUDA call. With `all` each then takes a context and 1 MiB, and has two children that try to join: one without
 * an exec, one after it. Prints how often each answer came, as JSON; keeps the processes until EOF on standard input.
 * The interposer's messages to refused processes are discarded: a thousand lines would fill the pipe. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api/gs_cuda.h"

CUresult cuInit(unsigned);
CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);

enum { INIT, CONTEXT, MEMORY, FORKED, EXECUTED, ANSWERS, CODES = 1000, NOT_TRIED = CODES - 1, BROKEN = CODES - 2 };
static const char *const names[ANSWERS] = {"init", "context", "memory", "forked", "executed"};

/* Answers of a child, in an exit status: a byte, in which 802 does not fit. */
enum { REFUSED_BYTE = 255, NOT_EXECUTED_BYTE = 254 };

static int child_answer(void) {
  CUresult code = cuInit(0);
  return code == CUDA_ERROR_SYSTEM_NOT_READY ? REFUSED_BYTE : (int)code;
}

static int answer_of(pid_t child) {
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) < 0 || !WIFEXITED(status) || WEXITSTATUS(status) == NOT_EXECUTED_BYTE)
    return BROKEN;
  return WEXITSTATUS(status) == REFUSED_BYTE ? CUDA_ERROR_SYSTEM_NOT_READY : WEXITSTATUS(status);
}

static void try_all(const char *program, int answer[ANSWERS]) {
  CUcontext context;
  CUdeviceptr memory;
  if (answer[INIT] == 0)
    answer[CONTEXT] = cuDevicePrimaryCtxRetain(&context, 0);
  if (answer[CONTEXT] == 0)
    answer[CONTEXT] = cuCtxSetCurrent(context);
  if (answer[CONTEXT] == 0)
    answer[MEMORY] = cuMemAlloc_v2(&memory, 1 << 20);
  pid_t child = fork();
  if (child == 0)
    _exit(child_answer());
  answer[FORKED] = answer_of(child);
  child = fork();
  if (child == 0) {
    execl(program, program, "child", NULL);
    _exit(NOT_EXECUTED_BYTE);
  }
  answer[EXECUTED] = answer_of(child);
}

static void join(const char *program, int all, int out) {
  int answer[ANSWERS] = {NOT_TRIED, NOT_TRIED, NOT_TRIED, NOT_TRIED, NOT_TRIED};
  answer[INIT] = cuInit(0);
  if (all)
    try_all(program, answer);
  if (write(out, answer, sizeof answer) != (ssize_t)sizeof answer)
    _exit(1);
  for (;;)
    pause();
}

int main(int argc, char **argv) {
  static int times[ANSWERS][CODES];
  int pipes[2], answer[ANSWERS];
  if (argc > 1 && strcmp(argv[1], "child") == 0)
    return child_answer();
  int processes = argc > 1 ? atoi(argv[1]) : 1;
  int silent = open("/dev/null", O_WRONLY);
  if (silent < 0 || dup2(silent, STDERR_FILENO) < 0 || pipe(pipes) != 0)
    return 1;
  for (int i = 0; i < processes; i++)
    if (fork() == 0)
      join(argv[0], argc > 2, pipes[1]);
  for (int i = 0; i < processes; i++) {
    if (read(pipes[0], answer, sizeof answer) != (ssize_t)sizeof answer)
      return 1;
    for (int k = 0; k < ANSWERS; k++)
      times[k][answer[k] >= 0 && answer[k] < CODES ? answer[k] : BROKEN]++;
  }
  for (int k = 0; k < ANSWERS; k++) {
    const char *comma = "";
    printf("%s\"%s\": {", k ? ", " : "{", names[k]);
    for (int code = 0; code < NOT_TRIED; code++)
      if (times[k][code]) {
        printf("%s\"%d\": %d", comma, code, times[k][code]);
        comma = ", ";
      }
    printf("}");
  }
  printf("}\n");
  fflush(stdout);
  while (read(0, answer, sizeof answer) > 0)
    ;
  return 0;
}
