/* A rank of a gang without a GPU: runs collectives one after another, using only the fields of gs_page.h. A collective
 * is on the device from its submission until all ranks have submitted theirs, and for 0.2 ms more.
 *   rank LIMITS USAGE SLOT BELL_FD ORDINAL MEETING RANK RANKS
 * MEETING is a file that all ranks map. It has for each rank: collectives submitted, collectives completed, longest
 * spin in us. */
#include <linux/futex.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "../page_process.h"

struct meeting {
  uint64_t submitted, done, spun_us, unused;
};

static uint64_t load(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

static void store(uint64_t *word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_SEQ_CST); }

/* As in the interposer: passes with a lease, or without one up to the cut. */
static void gate(const uint32_t *lease, struct gs_slot_device *words, int bell) {
  for (int rung = 0;; rung = 1) {
    uint32_t seen = __atomic_load_n(lease, __ATOMIC_ACQUIRE);
    if ((seen & GS_LEASE_HELD) || load(&words->collectives) < load(&words->cut))
      break;
    __atomic_store_n(&words->waiting, 1, __ATOMIC_SEQ_CST);
    if (!rung)
      ring(bell);
    struct timespec timeout = {0, 20000000};
    syscall(SYS_futex, lease, FUTEX_WAIT, seen, &timeout, NULL, 0);
  }
  __atomic_store_n(&words->waiting, 0, __ATOMIC_SEQ_CST);
}

static void collective(const uint32_t *lease, struct gs_slot_device *words, int bell, struct meeting *all, int rank,
                       int ranks) {
  uint64_t mine = all[rank].submitted + 1, began = now_ns();
  store(&words->queue_end_ns, began + 1000 * US);
  __atomic_store_n(&words->inflight, 1, __ATOMIC_SEQ_CST);
  store(&words->launches, words->launches + 1);
  store(&words->collectives, words->collectives + 1);
  store(&all[rank].submitted, mine);
  for (int other = 0; other < ranks; other++)
    while (load(&all[other].submitted) < mine) {
      store(&words->queue_end_ns, now_ns() + 1000 * US);
      nap(50 * US);
    }
  uint64_t met = now_ns();
  if ((met - began) / US > all[rank].spun_us)
    store(&all[rank].spun_us, (met - began) / US);
  nap(200 * US);
  store(&words->busy_ns, words->busy_ns + now_ns() - began);
  store(&words->queue_end_ns, now_ns());
  __atomic_store_n(&words->inflight, 0, __ATOMIC_SEQ_CST);
  store(&all[rank].done, mine);
  uint32_t seen = __atomic_load_n(lease, __ATOMIC_ACQUIRE);
  if ((seen & GS_LEASE_HELD) == 0) {
    __atomic_store_n(&words->drained, seen, __ATOMIC_SEQ_CST);
    ring(bell);
  }
}

int main(int argc, char **argv) {
  if (argc != 9)
    return 2;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const struct gs_limits *limits = map(argv[1], sizeof *limits, 0);
  struct gs_usage *usage = map(argv[2], sizeof *usage, 1);
  int bell = atoi(argv[4]), ordinal = atoi(argv[5]), rank = atoi(argv[7]), ranks = atoi(argv[8]);
  struct gs_slot_device *words = &usage->slot[atoi(argv[3])].device[ordinal];
  struct meeting *all = map(argv[6], (size_t)ranks * sizeof *all, 1);
  const uint32_t *lease = &limits->device[ordinal].lease;
  for (;;) {
    gate(lease, words, bell);
    collective(lease, words, bell, all, rank, ranks);
  }
}
