/* What the runtime says where no driver is: results of two questions, and the count of devices. */
#include <stdio.h>

int cudaGetDeviceCount(int *);
int cudaDriverGetVersion(int *);

int main(void) {
  int n = 7, v = 7, r = cudaDriverGetVersion(&v);
  printf("%d %d %d\n", r, v, cudaGetDeviceCount(&n));
}
