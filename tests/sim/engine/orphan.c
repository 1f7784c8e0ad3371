/* Forks without exec and ends: its child prints its pid, keeps the descriptors, and waits to be killed. */
#include "client.h"

int main(void) {
  struct client c = client_start();
  CUdeviceptr p;
  OK(cuMemAlloc_v2(&p, 1 << 30));
  spin(&c, 1000, NULL);
  if (fork() == 0) {
    printf("%d\n", (int)getpid());
    fflush(stdout);
    for (;;)
      pause();
  }
  getchar();
  _exit(0);
}
