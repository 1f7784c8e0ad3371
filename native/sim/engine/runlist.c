/* Decides which lane has the device at which time.
 *
 * A lane with work either has the device (its last interval is open) or waits in the run list. A lane without
 * competition keeps the device with no further messages. When another lane wants the device, the current lane's
 * interval is closed at the end of its slice or when its work runs out, whichever is first. The next lane's interval
 * starts after the switch time.
 *
 * Two races are resolved by the order of stores, all sequentially consistent:
 * - closing: `until` is published with a time in the future and compared with the clock after the store, so no client
 * can have executed past it.
 * - going idle: the engine clears `aware`, then reads the report again; a client publishes its report, then reads
 * `aware` and rings the bell if it is 0. At least one of them sees the other's store. */
#define _GNU_SOURCE
#include "sim/engine/engine.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A decision is made this long before it takes effect, to hide the engine's wake-up latency. */
enum { DECIDE_AHEAD_NS = 30000, GUARD_NS = 5000 };

static void wake(struct lane *lane) {
  __atomic_add_fetch(&lane->page->wake, 1, __ATOMIC_SEQ_CST);
  syscall(SYS_futex, &lane->page->wake, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static struct sim_interval *last_interval(struct lane *lane) {
  return lane->page->count ? &lane->page->interval[(lane->page->count - 1) % SIM_INTERVALS] : NULL;
}

/* Device time granted to the lane from its opening until t. */
static uint64_t granted(const struct lane *lane, uint64_t t) {
  const struct sim_lane *page = lane->page;
  uint64_t oldest = page->count > SIM_INTERVALS ? page->count - SIM_INTERVALS : 0;
  for (uint64_t k = page->count; k-- > oldest;) {
    const struct sim_interval *interval = &page->interval[k % SIM_INTERVALS];
    if (interval->from <= t)
      return interval->before + (t < interval->until ? t : interval->until) - interval->from;
    if (k == oldest)
      return interval->before;
  }
  return 0;
}

/* Reads the client's latest report. A report that is being overwritten is skipped until the next read: the previous one
 * is still correct, only less complete. */
static void read_report(struct lane *lane, uint64_t now) {
  for (int attempt = 0; attempt < 4; attempt++) {
    uint64_t reports = __atomic_load_n(&lane->page->reports, __ATOMIC_SEQ_CST);
    if (reports == lane->reports_read)
      return;
    const struct sim_report *slot = &lane->page->report[(reports - 1) % 2];
    struct sim_report copy = {
        .seq = __atomic_load_n(&slot->seq, __ATOMIC_ACQUIRE),
        .at = __atomic_load_n(&slot->at, __ATOMIC_ACQUIRE),
        .executed = __atomic_load_n(&slot->executed, __ATOMIC_ACQUIRE),
        .backlog = __atomic_load_n(&slot->backlog, __ATOMIC_ACQUIRE),
        .barriers = __atomic_load_n(&slot->barriers, __ATOMIC_ACQUIRE),
    };
    if (__atomic_load_n(&lane->page->reports, __ATOMIC_SEQ_CST) > reports || copy.seq != reports - 1)
      continue;
    uint64_t most = granted(lane, now);
    if (copy.at > now)
      copy.at = now;
    if (copy.executed > most)
      copy.executed = most;
    if (copy.backlog > UINT64_MAX / 4)
      copy.backlog = UINT64_MAX / 4;
    lane->report = copy;
    lane->reports_read = reports;
    return;
  }
}

static uint64_t executed(const struct lane *lane, uint64_t t) {
  const struct sim_report *report = &lane->report;
  if (t <= report->at)
    return report->executed;
  uint64_t got = granted(lane, t) - granted(lane, report->at);
  return report->executed + (got < report->backlog ? got : report->backlog);
}

/* Extrapolates the report to t. A stopped process sends no new reports, and the intervals that its last one refers to
 * are overwritten in time. */
static void roll(struct lane *lane, uint64_t t) {
  uint64_t done = executed(lane, t);
  if (t <= lane->report.at)
    return;
  lane->report.backlog -= done - lane->report.executed;
  lane->report.executed = done;
  lane->report.at = t;
}

static uint64_t remaining(const struct lane *lane, uint64_t t) {
  return lane->report.executed + lane->report.backlog - executed(lane, t);
}

uint64_t lane_busy(struct lane *lane, uint64_t now) {
  read_report(lane, now);
  uint64_t done = executed(lane, now), most = granted(lane, now);
  if (done > most)
    done = most;
  done -= lane->report.barriers < done ? lane->report.barriers : done;
  if (done > lane->busy_ns)
    lane->busy_ns = done;
  return lane->busy_ns;
}

void lane_lock(const struct lane *lane, bool locked) {
  __atomic_store_n(&lane->page->locked, locked, __ATOMIC_SEQ_CST);
  syscall(SYS_futex, &lane->page->locked, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

bool lane_works(struct lane *lane, uint64_t now) {
  read_report(lane, now);
  return remaining(lane, now) > 0;
}

/* True if the lane has runnable work at t. If not, its client must ring the bell when it has new work. */
static bool has_work(struct lane *lane, uint64_t now, uint64_t t) {
  read_report(lane, now);
  if (remaining(lane, t) > 0)
    return true;
  __atomic_store_n(&lane->page->aware, 0, __ATOMIC_SEQ_CST);
  read_report(lane, now);
  if (remaining(lane, t) == 0)
    return false;
  __atomic_store_n(&lane->page->aware, 1, __ATOMIC_SEQ_CST);
  return true;
}

static void enqueue(struct device *device, struct lane *lane) {
  struct lane **tail = &device->queue;
  while (*tail)
    tail = &(*tail)->next;
  *tail = lane;
  lane->next = NULL;
  lane->queued = true;
}

static void dequeue(struct device *device, struct lane *lane) {
  for (struct lane **at = &device->queue; *at; at = &(*at)->next)
    if (*at == lane) {
      *at = lane->next;
      break;
    }
  lane->next = NULL;
  lane->queued = false;
}

/* Removes lanes from the head of the run list whose work ran out while they waited. Returns the first lane with work,
 * or NULL. */
static struct lane *waiting(struct device *device, uint64_t now) {
  while (device->queue) {
    struct lane *head = device->queue;
    if (has_work(head, now, device->free_at > now ? device->free_at : now))
      return head;
    dequeue(device, head);
  }
  return NULL;
}

static void grant(struct engine *engine, struct device *device, struct lane *lane, uint64_t now) {
  uint64_t from = device->free_at > now ? device->free_at : now;
  if (device->last_id && device->last_id != lane->id) {
    uint64_t switched = device->free_at + engine->options.hello.switch_ns;
    device->switches++;
    if (from < switched) {
      device->switch_ns += switched - from;
      from = switched;
    }
  }
  roll(lane, now);
  const struct sim_interval *last = last_interval(lane);
  struct sim_interval next = {from, SIM_OPEN, last ? last->before + last->until - last->from : 0};
  struct sim_lane *page = lane->page;
  page->interval[page->count % SIM_INTERVALS] = next;
  __atomic_store_n(&page->aware, 1, __ATOMIC_SEQ_CST);
  __atomic_store_n(&page->count, page->count + 1, __ATOMIC_SEQ_CST);
  device->current = lane;
  device->slice_end = from + engine->options.hello.slice_ns;
  wake(lane);
}

/* Without preemption a slice ends when the work item running at its end completes. */
static uint64_t item_end(const struct lane *lane, uint64_t t) {
  const struct sim_lane *page = lane->page;
  uint64_t done = executed(lane, t), best = lane->report.executed + lane->report.backlog;
  uint64_t count = __atomic_load_n(&page->boundaries, __ATOMIC_ACQUIRE);
  uint64_t oldest = count > SIM_BOUNDARIES ? count - SIM_BOUNDARIES : 0;
  for (uint64_t k = count; k-- > oldest;) {
    uint64_t end = __atomic_load_n(&page->boundary[k % SIM_BOUNDARIES], __ATOMIC_RELAXED);
    if (end < done)
      break;
    if (end < best)
      best = end;
  }
  return t + (best > done ? best - done : 0);
}

/* Ends the current lane's interval at t, or shortly after the current time if t has passed. */
static void take_back(struct device *device, uint64_t t) {
  struct lane *lane = device->current;
  struct sim_interval *interval = last_interval(lane);
  uint64_t now = engine_now(), until = t;
  do {
    if (until < now + GUARD_NS)
      until = now + GUARD_NS;
    if (until < interval->from)
      until = interval->from;
    __atomic_store_n(&interval->until, until, __ATOMIC_SEQ_CST);
    now = engine_now();
  } while (now > until);
  device->free_at = until;
  device->last_id = lane->id;
  device->current = NULL;
  wake(lane);
  if (has_work(lane, now, until))
    enqueue(device, lane);
}

void runlist_run(struct engine *engine, uint32_t index) {
  struct device *device = &engine->device[index];
  device->timer = UINT64_MAX;
  if (device->setting[SIM_LOST]) {
    if (device->current)
      take_back(device, engine_now());
    return;
  }
  for (;;) {
    uint64_t now = engine_now();
    struct lane *next = waiting(device, now);
    if (next == NULL) {
      device->contended = false;
      return;
    }
    if (device->current == NULL) {
      dequeue(device, next);
      grant(engine, device, next, now);
      continue;
    }
    struct lane *current = device->current;
    read_report(current, now);
    uint64_t slice = engine->options.hello.slice_ns;
    /* The slices of a lane without competition follow one another; a newcomer waits for the end of the current one. */
    if (!device->contended && device->slice_end <= now)
      device->slice_end += slice * (1 + (now - device->slice_end) / slice);
    device->contended = true;
    uint64_t start = last_interval(current)->from > now ? last_interval(current)->from : now;
    uint64_t dry = start + remaining(current, start);
    uint64_t end = dry < device->slice_end ? dry : device->slice_end;
    if (end > now + DECIDE_AHEAD_NS) {
      device->timer = end - DECIDE_AHEAD_NS;
      return;
    }
    if (!engine->options.hello.preempt)
      end = item_end(current, end);
    take_back(device, end);
  }
}

void lane_bell(struct engine *engine, struct lane *lane) {
  struct device *device = &engine->device[lane->device];
  uint64_t now = engine_now();
  read_report(lane, now);
  if (device->current != lane && !lane->queued) {
    __atomic_store_n(&lane->page->aware, 1, __ATOMIC_SEQ_CST);
    enqueue(device, lane);
  }
  runlist_run(engine, lane->device);
}

int lane_open(struct engine *engine, struct process *process, uint32_t device, struct lane **out) {
  struct lane *lane = calloc(1, sizeof *lane);
  if (lane == NULL)
    return -ENOMEM;
  lane->process = process;
  lane->device = device;
  lane->id = ++engine->lanes;
  lane->page = MAP_FAILED;
  lane->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  lane->memfd = memfd_create("gpushare-sim-lane", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  int error = 0;
  /* The file is sealed: a client that truncated it would kill the engine with SIGBUS. */
  if (lane->bell < 0 || lane->memfd < 0 || ftruncate(lane->memfd, sizeof *lane->page) < 0 ||
      fcntl(lane->memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0 ||
      (lane->page = mmap(NULL, sizeof *lane->page, PROT_READ | PROT_WRITE, MAP_SHARED, lane->memfd, 0)) == MAP_FAILED)
    error = -errno;
  if (error) {
    if (lane->bell >= 0)
      close(lane->bell);
    if (lane->memfd >= 0)
      close(lane->memfd);
    free(lane);
    return error;
  }
  lane->page->magic = SIM_PROTO_MAGIC;
  lane->page->version = SIM_PROTO_VERSION;
  process->share[device].lane = lane;
  lane_lock(lane, process->state != SIM_RUNNING);
  *out = lane;
  return 0;
}

/* Queued work is dropped: accounting for the lane ends here. */
void lane_close(struct engine *engine, struct lane *lane) {
  uint32_t index = lane->device;
  struct device *device = &engine->device[index];
  struct share *share = &lane->process->share[index];
  uint64_t now = engine_now();
  share->busy_ns += lane_busy(lane, now);
  for (int i = 0; i < SIM_DIRECTIONS; i++)
    share->copied[i] += __atomic_load_n(&lane->page->copied[i], __ATOMIC_RELAXED);
  share->lane = NULL;
  if (device->current == lane) {
    device->current = NULL;
    device->free_at = now;
    device->last_id = lane->id;
  } else if (lane->queued) {
    dequeue(device, lane);
  }
  munmap(lane->page, sizeof *lane->page);
  close(lane->bell);
  if (lane->memfd >= 0)
    close(lane->memfd);
  free(lane);
  runlist_run(engine, index);
}
