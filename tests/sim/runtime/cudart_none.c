/* The runtime without a driver: results of two queries, and the number of devices. */
#include <stdio.h>

int cudaGetDeviceCount(int *);
int cudaDriverGetVersion(int *);

int main(void) {
  int n = 7, v = 7, r = cudaDriverGetVersion(&v);
  printf("%d %d %d\n", r, v, cudaGetDeviceCount(&n));
}
