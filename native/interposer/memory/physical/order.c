#include "interposer/memory/physical/order.h"

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "interposer/memory/physical/objects.h"
#include "interposer/os/guest.h"

#define LOOK_NS 1000000000u /* if no call has ended for this long, calls of terminated threads are dropped */

static bool both(const struct gs_underway *a, const struct gs_underway *b, unsigned one, unsigned other) {
  return (a->does & one && b->does & other) || (a->does & other && b->does & one);
}

/* Whether a excludes b because of a handle that b names. */
static bool is_alone_with(const struct gs_underway *a, const struct gs_underway *b) {
  return a->does & GS_IS_ALONE && a->handle &&
         (b->does & GS_NAMES_MANY || b->handle == a->handle || b->other == a->handle);
}

static bool overlap(const struct gs_underway *a, const struct gs_underway *b) {
  return a->from - b->from < b->bytes || b->from - a->from < a->bytes;
}

static bool exclude(const struct gs_underway *a, const struct gs_underway *b) {
  return is_alone_with(a, b) || is_alone_with(b, a) || both(a, b, GS_GUESSES, GS_MAKES_HANDLE) ||
         both(a, b, GS_IMPORTS, GS_EXPORTS) ||
         ((a->does | b->does) & (GS_MAPS | GS_UNMAPS) && a->bytes > 0 && b->bytes > 0 && overlap(a, b));
}

/* Whether an earlier call keeps this one waiting. A thread never waits for its own calls: this call may come from a
 * signal handler. */
static bool has_to_wait(const struct gs_order *order, const struct gs_underway *call) {
  for (const struct gs_underway *each = order->call; each < order->call + order->places; each++)
    if (each->number && each->number < call->number && each->thread != call->thread && exclude(each, call))
      return true;
  return false;
}

/* Drops the calls of threads that were cancelled in the driver: they never end. */
static void drop_gone(struct gs_order *order) {
  for (struct gs_underway *each = order->call; each < order->call + order->places; each++)
    if (each->number && syscall(SYS_tgkill, getpid(), each->thread, 0) < 0 && errno == ESRCH)
      each->number = 0;
}

static bool is_unknown(uint64_t handle) { return handle && !gs_table_find(&gs_books()->handles, handle); }

static bool guesses(const struct gs_underway *call) {
  return call->does & GS_NAMES_MANY || is_unknown(call->handle) || is_unknown(call->other);
}

static struct gs_underway *free_place(struct gs_order *order) {
  for (struct gs_underway *each = order->call; each < order->call + order->places; each++)
    if (each->number == 0)
      return each;
  return order->places < GS_UNDERWAY ? &order->call[order->places++] : NULL;
}

/* Waits for the end of any call; the lock is released meanwhile. */
static void wait_for_an_end(struct gs_order *order) {
  uint32_t ended = order->ended;
  order->waiters++;
  gs_table_unlock(&gs_books()->objects);
  bool any = gs_futex_wait(&order->ended, ended, LOOK_NS, false);
  gs_objects_lock();
  order->waiters--;
  if (!any)
    drop_gone(order);
}

static void end(struct gs_order *order, struct gs_underway *call) {
  call->number = 0;
  if (order->waiters == 0)
    return;
  __atomic_store_n(&order->ended, order->ended + 1, __ATOMIC_RELEASE);
  gs_futex_wake(&order->ended, INT32_MAX, false);
}

struct gs_underway *gs_order_begin(const struct gs_underway *wanted) {
  struct gs_order *order = &gs_books()->order;
  struct gs_underway *call;
  int saved = errno;
  gs_objects_lock();
  for (;;) {
    while (!(call = free_place(order)))
      wait_for_an_end(order);
    *call = *wanted;
    call->thread = (int)syscall(SYS_gettid);
    call->number = ++order->numbers;
    call->does |= guesses(call) ? GS_GUESSES : 0;
    while (has_to_wait(order, call))
      wait_for_an_end(order);
    if (call->does & GS_GUESSES || !guesses(call))
      break;
    end(order, call); /* the handle has ended meanwhile */
  }
  gs_table_unlock(&gs_books()->objects);
  errno = saved;
  return call;
}

void gs_order_end(struct gs_underway *call) {
  gs_objects_lock();
  end(&gs_books()->order, call);
  gs_table_unlock(&gs_books()->objects);
}
