/* Forks without exec and exits: its child keeps the descriptors. */
#include "client.h"

int main(void) {
  struct client c = client_start();
  CUdeviceptr p;
  OK(cuMemAlloc_v2(&p, 1 << 30));
  spin(&c, 1000, NULL);
  if (fork() == 0) {
    puts("forked");
    fflush(stdout);
    for (;;)
      pause();
  }
  getchar();
  _exit(0);
}
