/* The NVML of an old driver with only two functions. */
int nvmlInit_v2(void);
int nvmlDeviceGetCount_v2(unsigned *count);

int nvmlInit_v2(void) { return 0; }

int nvmlDeviceGetCount_v2(unsigned *count) {
  *count = 0;
  return 0;
}
