/* What processes of a grant without a GPU share: its pages and its bell. */
#ifndef PAGE_PROCESS_H
#define PAGE_PROCESS_H

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "page/gs_page.h"

#define US UINT64_C(1000)

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline void nap(uint64_t ns) {
  struct timespec pause = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
  nanosleep(&pause, NULL);
}

static inline void *map(const char *path, size_t size, int writable) {
  int fd = open(path, writable ? O_RDWR : O_RDONLY);
  void *page = fd < 0 ? MAP_FAILED : mmap(NULL, size, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
  if (page == MAP_FAILED) {
    perror(path);
    exit(2);
  }
  return page;
}

static void ring(int bell) {
  uint64_t one = 1;
  while (write(bell, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

#endif
