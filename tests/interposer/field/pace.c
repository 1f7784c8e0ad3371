/* A tenant that submits work in one of the ways that escape other sharing schemes, until its stdin is closed: pace HOW
 * PTX NS [NODES]
 *
 * deep    kernels back to back          sync    one kernel, then wait for it
 * graph   graphs of NODES kernels       coop    cooperative launches
 * gang    one kernel on each device, then wait for both
 * one     a single kernel, then a new stream for the next
 *
 * Prints "ready" once the first kernel is complete, and the number of kernels at the end. */
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim_api.h"

enum { MAX_DEVICES = 8, BATCH = 16 };
static CUcontext context[MAX_DEVICES];
static CUfunction spin[MAX_DEVICES];
static CUstream stream[MAX_DEVICES];
static int ndevices;
static uint64_t ns, kernels;
static CUgraphExec graph;

static void ok(CUresult result, const char *what) {
  if (result == CUDA_SUCCESS)
    return;
  fprintf(stderr, "%s: %d\n", what, (int)result);
  exit(1);
}
#define OK(call) ok(call, #call)

static void start(const char *path) {
  static char ptx[1 << 16];
  FILE *file = fopen(path, "r");
  CUmodule module;
  if (!file || !fread(ptx, 1, sizeof ptx - 1, file))
    exit(2);
  fclose(file);
  OK(cuInit(0));
  OK(cuDeviceGetCount(&ndevices));
  for (int i = 0; i < ndevices && i < MAX_DEVICES; i++) {
    OK(cuDevicePrimaryCtxRetain(&context[i], i));
    OK(cuCtxSetCurrent(context[i]));
    OK(cuModuleLoadData(&module, ptx));
    OK(cuModuleGetFunction(&spin[i], module, "spin_ns"));
    OK(cuStreamCreate(&stream[i], 1));
  }
  OK(cuCtxSetCurrent(context[0]));
}

static void launch(int device) {
  void *arguments[] = {&ns};
  OK(cuLaunchKernel(spin[device], 1, 1, 1, 1, 1, 1, 0, stream[device], arguments, NULL));
  kernels++;
}

static void record(int nodes) {
  CUgraph captured;
  OK(cuStreamBeginCapture_v2(stream[0], 0));
  for (int i = 0; i < nodes; i++)
    launch(0);
  OK(cuStreamEndCapture(stream[0], &captured));
  OK(cuGraphInstantiateWithFlags(&graph, captured, 0));
  kernels = 0;
}

static void step(const char *how, int nodes) {
  void *arguments[] = {&ns};
  if (!strcmp(how, "deep")) {
    for (int i = 0; i < BATCH; i++)
      launch(0);
  } else if (!strcmp(how, "sync")) {
    launch(0);
    OK(cuStreamSynchronize(stream[0]));
  } else if (!strcmp(how, "graph")) {
    OK(cuGraphLaunch(graph, stream[0]));
    kernels += (uint64_t)nodes;
  } else if (!strcmp(how, "coop")) {
    OK(cuLaunchCooperativeKernel(spin[0], 1, 1, 1, 1, 1, 1, 0, stream[0], arguments));
    kernels++;
  } else if (!strcmp(how, "one")) {
    launch(0);
    OK(cuStreamDestroy_v2(stream[0]));
    OK(cuStreamCreate(&stream[0], 1));
  } else if (!strcmp(how, "gang")) {
    for (int i = 0; i < ndevices; i++) {
      OK(cuCtxSetCurrent(context[i]));
      launch(i);
    }
    for (int i = 0; i < ndevices; i++)
      OK(cuStreamSynchronize(stream[i]));
  } else {
    exit(2);
  }
}

int main(int argc, char **argv) {
  if (argc < 4)
    return 2;
  int nodes = argc > 4 ? atoi(argv[4]) : 1;
  ns = strtoull(argv[3], NULL, 10);
  start(argv[2]);
  if (!strcmp(argv[1], "graph"))
    record(nodes);
  step(argv[1], nodes);
  OK(cuCtxSynchronize());
  printf("{\"devices\": %d}\n", ndevices);
  fflush(stdout);
  while (poll(&(struct pollfd){0, POLLIN, 0}, 1, 0) == 0)
    step(argv[1], nodes);
  OK(cuCtxSynchronize());
  printf("{\"kernels\": %llu}\n", (unsigned long long)kernels);
  return 0;
}
