#include "gate.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "driver.h"

enum { MARKS = 8, MARK_NS = 500000 };

struct mark {
  CUevent event;
  uint64_t ns; /* of work since the mark before */
};

struct gate {
  struct gate_side *side;
  uint32_t *bounded_word;
  struct mark mark[MARKS]; /* a ring */
  unsigned head, tail;
  uint64_t open_ns, inflight_ns;
};

struct gate_page *gate_map(const char *path) {
  int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  void *at = MAP_FAILED;
  if (fd >= 0 && ftruncate(fd, sizeof(struct gate_page)) == 0)
    at = mmap(NULL, sizeof(struct gate_page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) {
    perror(path);
    exit(2);
  }
  close(fd);
  return at;
}

void gate_wake(uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE, 1 << 30, NULL, NULL, 0); }

void gate_wait(uint32_t *word, uint32_t value, unsigned us) {
  struct timespec timeout = {0, us * 1000L};
  syscall(SYS_futex, word, FUTEX_WAIT, value, &timeout, NULL, 0);
}

struct gate *gate_open(const char *path, unsigned side) {
  static struct gate gate;
  if (!path)
    return NULL;
  struct gate_page *page = gate_map(path);
  gate.side = &page->side[side % GATE_SIDES];
  gate.bounded_word = &page->bounded;
  for (unsigned i = 0; i < MARKS; i++)
    MUST(cuEventCreate(&gate.mark[i].event, CU_EVENT_DISABLE_TIMING));
  return &gate;
}

void gate_active(struct gate *gate, bool active) {
  if (gate)
    __atomic_store_n(&gate->side->active, active, __ATOMIC_RELEASE);
}

static bool bounded(struct gate *gate) { return __atomic_load_n(gate->bounded_word, __ATOMIC_RELAXED) != 0; }

static void reap_oldest(struct gate *gate) {
  struct mark *oldest = &gate->mark[gate->tail++ % MARKS];
  MUST(cuEventSynchronize(oldest->event));
  gate->inflight_ns -= oldest->ns;
}

static void mark(struct gate *gate, CUstream stream) {
  if (gate->head - gate->tail == MARKS)
    reap_oldest(gate);
  struct mark *fresh = &gate->mark[gate->head++ % MARKS];
  fresh->ns = gate->open_ns;
  gate->open_ns = 0;
  MUST(cuEventRecord(fresh->event, stream));
}

static void drain(struct gate *gate, CUstream stream, CUevent end, uint32_t word) {
  if (end)
    MUST(cuEventRecord(end, stream));
  MUST(cuStreamSynchronize(stream));
  gate_idle(gate);
  __atomic_store_n(&gate->side->drained, word, __ATOMIC_RELEASE);
}

/* Says that it is busy before it looks whether it may: who takes the device away does it the other way round. */
static uint32_t claim(struct gate_side *side) {
  __atomic_store_n(&side->busy, 1, __ATOMIC_SEQ_CST);
  return __atomic_load_n(&side->allowed, __ATOMIC_SEQ_CST);
}

/* Until this side has the device. True when it did not. */
static bool stand(struct gate *gate, CUstream stream, CUevent end) {
  struct gate_side *side = gate->side;
  bool stood = false;
  for (uint32_t word; !((word = claim(side)) & 1); stood = true) {
    if (!stood)
      drain(gate, stream, end, word);
    __atomic_store_n(&side->waiting, 1, __ATOMIC_RELEASE);
    __atomic_store_n(&side->drained, word, __ATOMIC_RELEASE);
    gate_wait(&side->allowed, word, 1000);
  }
  if (stood)
    __atomic_store_n(&side->waiting, 0, __ATOMIC_RELEASE);
  return stood;
}

bool gate_enter(struct gate *gate, void *stream, uint64_t ns, void *end) {
  if (!gate)
    return false;
  bool stood = stand(gate, stream, end);
  while (bounded(gate) && gate->inflight_ns && gate->inflight_ns + ns > GATE_BOUND_NS) {
    if (gate->head == gate->tail)
      mark(gate, stream);
    reap_oldest(gate);
    if (stand(gate, stream, end)) /* the device may have gone meanwhile, and everything before is done then */
      stood = true;
  }
  return stood;
}

void gate_submitted(struct gate *gate, void *stream, uint64_t ns) {
  if (!gate)
    return;
  uint64_t now = now_ns(), end = gate->side->queue_end;
  __atomic_store_n(&gate->side->queue_end, (end > now ? end : now) + ns, __ATOMIC_RELEASE);
  if (!bounded(gate))
    return;
  gate->open_ns += ns;
  gate->inflight_ns += ns;
  if (gate->open_ns >= MARK_NS)
    mark(gate, stream);
}

void gate_idle(struct gate *gate) {
  if (!gate)
    return;
  gate->tail = gate->head;
  gate->open_ns = gate->inflight_ns = 0;
  __atomic_store_n(&gate->side->queue_end, now_ns(), __ATOMIC_RELEASE);
  __atomic_store_n(&gate->side->busy, 0, __ATOMIC_RELEASE);
}
