/* A grant's process without a GPU: keeps a device's queue full while it holds the lease and releases the lease when it
 * is revoked, using only the fields of gs_page.h. The time for which it held the lease counts as its busy time.
 *   tenant LIMITS USAGE SLOT BELL_FD [BUSY_MS IDLE_MS] */
#include <linux/futex.h>
#include <sys/prctl.h>
#include <signal.h>
#include <sys/syscall.h>

#include "../page_process.h"

#define MS UINT64_C(1000000)

static void wait_word(const uint32_t *word, uint32_t seen, uint64_t ns) {
  struct timespec timeout = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
  syscall(SYS_futex, word, FUTEX_WAIT, seen, &timeout, NULL, 0);
}

static uint32_t load(const uint32_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

static void store(uint32_t *word, uint32_t value) { __atomic_store_n(word, value, __ATOMIC_SEQ_CST); }

/* As in the interposer's gate. */
static void gate(const struct gs_device_limits *limits, struct gs_slot_device *slot, int bell) {
  if (load(&limits->lease) & GS_LEASE_HELD)
    return;
  store(&slot->waiting, 1);
  ring(bell);
  for (uint32_t seen; ((seen = load(&limits->lease)) & GS_LEASE_HELD) == 0;)
    wait_word(&limits->lease, seen, 50 * MS);
  store(&slot->waiting, 0);
}

static void work_until_revoked(const struct gs_device_limits *limits, struct gs_slot_device *slot, int bell,
                               uint64_t end) {
  uint32_t lease = load(&limits->lease);
  uint64_t last = now_ns();
  __atomic_fetch_add(&slot->launches, 1, __ATOMIC_RELAXED);
  while ((lease & GS_LEASE_HELD) && load(&limits->lease) == lease && last < end) {
    __atomic_store_n(&slot->queue_end_ns, last + 2 * MS, __ATOMIC_RELEASE);
    __atomic_fetch_add(&slot->launches, 1, __ATOMIC_RELAXED);
    store(&slot->inflight, 1);
    wait_word(&limits->lease, lease, MS);
    uint64_t now = now_ns();
    __atomic_fetch_add(&slot->busy_ns, now - last, __ATOMIC_RELAXED);
    last = now;
  }
  __atomic_store_n(&slot->queue_end_ns, now_ns(), __ATOMIC_RELEASE);
  store(&slot->inflight, 0);
  uint32_t seen = load(&limits->lease);
  if ((seen & GS_LEASE_HELD) == 0) {
    store(&slot->drained, seen);
    ring(bell);
  }
}

int main(int argc, char **argv) {
  if (argc != 5 && argc != 7)
    return 2;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const struct gs_limits *limits = map(argv[1], sizeof *limits, 0);
  struct gs_usage *usage = map(argv[2], sizeof *usage, 1);
  struct gs_slot_device *slot = &usage->slot[atoi(argv[3])].device[0];
  int bell = atoi(argv[4]);
  uint64_t busy = argc == 7 ? (uint64_t)atoi(argv[5]) * MS : UINT64_MAX / 2,
           idle = argc == 7 ? (uint64_t)atoi(argv[6]) * MS : 0;
  for (;;) {
    for (uint64_t end = now_ns() + busy; now_ns() < end;) {
      gate(&limits->device[0], slot, bell);
      work_until_revoked(&limits->device[0], slot, bell, end);
    }
    nap(idle);
  }
}
