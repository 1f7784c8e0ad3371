/* The simulator's books, read over its own socket (native/sim/wire/sim_proto.h) as a viewer. Functions end the program when
 * the simulator does not answer. */
#ifndef BENCH_BOOKS_H
#define BENCH_BOOKS_H

#include <stdint.h>
#include <sys/types.h>

struct books_times {
  uint64_t busy_ns, switch_ns, wall_ns;
};

int books_connect(const char *path);
struct books_times books_device(int fd, uint32_t device);
/* Device time of one process so far. */
uint64_t books_process(int fd, uint32_t device, pid_t pid);
/* All of them as JSON, NUL-terminated; valid until the next call. */
const char *books_all(int fd);

#endif
