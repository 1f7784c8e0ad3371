/* Helpers of all benchmark programs. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "driver.h"

uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

const char *error_name(CUresult code) {
  const char *name = NULL;
  return cuGetErrorName(code, &name) == CUDA_SUCCESS && name ? name : "CUDA_ERROR_UNKNOWN";
}

void must_at(CUresult code, const char *call) {
  if (code == CUDA_SUCCESS)
    return;
  printf("{\"event\": \"error\", \"call\": \"%.40s\", \"error\": %d, \"name\": \"%s\"}\n", call, (int)code,
         error_name(code));
  fflush(stdout);
  exit(1);
}

char *read_file(const char *path) {
  FILE *file = fopen(path, "rb");
  char *text = NULL;
  long size = -1;
  if (file && fseek(file, 0, SEEK_END) == 0 && (size = ftell(file)) >= 0 && (text = calloc(1, (size_t)size + 1))) {
    rewind(file);
    if (fread(text, 1, (size_t)size, file) == (size_t)size) {
      fclose(file);
      return text;
    }
  }
  fprintf(stderr, "%s: %s\n", path, strerror(errno));
  exit(2);
}

bool parse_size(const char *text, size_t *out) {
  static const char units[] = "KMGT";
  char *end;
  errno = 0;
  unsigned long long value = strtoull(text, &end, 10);
  if (errno || end == text || *text == '-')
    return false;
  if (*end && strchr(units, *end)) {
    value <<= 10 * (strchr(units, *end) - units + 1);
    end += strncmp(end + 1, "iB", 2) == 0 ? 3 : 1;
  }
  *out = value;
  return !*end;
}
