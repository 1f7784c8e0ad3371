/* Calls NVML from a thread with the minimum stack size. */
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
int nvmlInit_v2(void), nvmlDeviceGetHandleByIndex_v2(unsigned, void **);
int nvmlDeviceGetComputeRunningProcesses_v3(void *, unsigned *, void *);
int nvmlDeviceGetProcessUtilization(void *, void *, unsigned *, unsigned long long);
int nvmlDeviceGetRunningProcessDetailList(void *, void *);
static char room[1100 * 40];
static void *device;
static int results[3];
static void *look(void *unused) {
  unsigned count = 1100;
  struct {
    unsigned version, mode, count;
    void *list;
  } details = {0x1000018, 0, 1100, room};
  results[0] = nvmlDeviceGetComputeRunningProcesses_v3(device, &count, room) * 10000 + (int)count;
  results[1] = nvmlDeviceGetRunningProcessDetailList(device, &details) * 10000 + (int)details.count;
  count = 1100;
  results[2] = nvmlDeviceGetProcessUtilization(device, room, &count, 0);
  return unused;
}
int main(void) {
  pthread_t thread;
  pthread_attr_t small;
  if (nvmlInit_v2() || nvmlDeviceGetHandleByIndex_v2(0, &device))
    return 1;
  unsigned count = 0; /* lazy loading happens on a large stack */
  nvmlDeviceGetComputeRunningProcesses_v3(device, &count, 0);
  nvmlDeviceGetProcessUtilization(device, 0, &count, 0);
  pthread_attr_init(&small);
  if (pthread_attr_setstacksize(&small, 16384) || pthread_create(&thread, &small, look, 0))
    return 2;
  pthread_join(thread, 0);
  printf("%d %d %d\n", results[0], results[1], results[2]);
  return 0;
}
