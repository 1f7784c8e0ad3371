#include "page.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct bench_page *page_map(const char *path) {
  int fd = open(path, O_RDWR | O_CLOEXEC);
  void *at = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(struct bench_page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) {
    perror(path);
    exit(2);
  }
  close(fd);
  return at;
}

void futex_wait(uint32_t *word, uint32_t seen, uint64_t ns) {
  struct timespec timeout = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
  syscall(SYS_futex, word, FUTEX_WAIT, seen, &timeout, NULL, 0);
}

void futex_wake(uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE, 1 << 30, NULL, NULL, 0); }

void ring(struct bench_page *page) {
  __atomic_add_fetch(&page->bell, 1, __ATOMIC_SEQ_CST);
  futex_wake(&page->bell);
}

uint64_t clock_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
