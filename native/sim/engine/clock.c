/* The clock, and registration of descriptors with epoll. */
#include <errno.h>
#include <sys/epoll.h>
#include <time.h>

#include "sim/engine/engine.h"

uint64_t engine_now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

int engine_watch(struct engine *engine, int fd, struct source *source) {
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = source};
  return epoll_ctl(engine->epoll, EPOLL_CTL_ADD, fd, &event) < 0 ? -errno : 0;
}
