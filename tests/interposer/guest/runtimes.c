/* Two copies of the CUDA runtime in one process: runtimes FIRST SECOND. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

struct runtime {
  int (*malloc)(void **, size_t);
  int (*free)(void *);
  int (*info)(size_t *, size_t *);
  int (*peek)(void);
};

static struct runtime load(const char *path) {
  struct runtime made;
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    puts(dlerror());
    exit(9);
  }
  *(void **)&made.malloc = dlsym(handle, "cudaMalloc");
  *(void **)&made.free = dlsym(handle, "cudaFree");
  *(void **)&made.info = dlsym(handle, "cudaMemGetInfo");
  *(void **)&made.peek = dlsym(handle, "cudaPeekAtLastError");
  return made;
}

int main(int argc, char **argv) {
  struct runtime one, two;
  void *at[2];
  size_t left, total[2];
  if (argc != 3)
    return 2;
  one = load(argv[1]);
  two = load(argv[2]);
  printf("first %d %d %d", one.malloc(&at[0], 1 << 20), one.info(&left, &total[0]), one.peek());
  printf(" second %d %d %d", two.malloc(&at[1], 1 << 20), two.info(&left, &total[1]), two.peek());
  printf(" apart %d\n", one.malloc != two.malloc && at[0] != at[1]);
  if (getenv("OVER")) {
    size_t much = strtoull(getenv("OVER"), NULL, 10);
    void *unused;
    printf("over %d %d", one.malloc(&unused, much), two.malloc(&unused, much));
    printf(" total %zu %zu\n", total[0], total[1]);
  }
  return one.free(at[0]) | two.free(at[1]);
}
