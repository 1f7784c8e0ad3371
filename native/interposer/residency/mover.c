#include "interposer/residency/mover.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>

#include "interposer/os/guest.h"
#include "interposer/os/system.h"
#include "interposer/os/thread.h"
#include "interposer/os/waits.h"
#include "interposer/process/passage/room.h"
#include "interposer/process/trace.h"
#include "interposer/residency/fixed.h"
#include "interposer/residency/host.h"
#include "interposer/residency/leaving.h"
#include "interposer/residency/movable.h"
#include "interposer/residency/move.h"
#include "interposer/residency/others.h"
#include "interposer/residency/quiesce.h"
#include "interposer/residency/state.h"
#include "interposer/time/timing.h"

enum {
  ORDINAL = 0, /* a grant that lends idle memory has one device */
  TICK_NS = 200000000,
  POLL_NS = 5000000,   /* where the kernel cannot wait for two words */
  SETTLE_NS = 1000000, /* while freed memory is still in use */
  SOON_NS = 200000,
  AGAIN_NS = 20000000,  /* while the device has no room */
  LEFT_NS = 1000000000, /* others who are told to leave take about so long at most, and it is looked so often: */
  LEFT_SOON_NS = 2000000,
  QUIET_NS = 1000000000,      /* without a submission, before memory is copied ahead */
  LOOK_AGAIN_NS = 1000000000, /* a wish that the daemon has heard, and that is not granted yet */
};
#define INSIDE_NS 10000000000u /* for calls that passed; one whose thread was cancelled never returns */
#define ALONE_NS 10000000000u  /* without a daemon, before memory comes back by itself */

static struct gs_mover *mover(void) { return gs_process->mover; }
static struct gs_slot_device *slot(void) { return &gs_process->slot->device[ORDINAL]; }
static const struct gs_device_limits *limits(void) { return &gs_process->limits->device[ORDINAL]; }
static uint32_t word_now(void) { return __atomic_load_n(&limits()->residency, __ATOMIC_ACQUIRE); }
static enum gs_residency meant(uint32_t word) { return word & ((1 << GS_RESIDENCY_SHIFT) - 1); }
static bool exiting(void) { return __atomic_load_n(&mover()->exits, __ATOMIC_ACQUIRE); }
static uint32_t state(void) { return __atomic_load_n(&gs_passage()->state, __ATOMIC_SEQ_CST); }

/* Whether the thread may call the driver. Once the program exits, the driver may tear itself down at any time, but not while
 * a call of an exit handler waits. */
static bool may_drive(void) { return !exiting() || __atomic_load_n(&gs_passage()->last_wants, __ATOMIC_ACQUIRE); }

static void set_state(uint32_t to) {
  __atomic_store_n(&gs_passage()->state, to, __ATOMIC_SEQ_CST);
  gs_futex_wake(&gs_passage()->state, INT32_MAX, false);
  /* those that wait at the gate wait for the lease */
  if (to == GS_OPEN)
    gs_futex_wake(&limits()->lease, INT32_MAX, true);
}

/* Tells the daemon how the word was carried out. */
static void acknowledge(uint32_t word, enum gs_move how) {
  gs_movable_publish();
  __atomic_fetch_and(&slot()->flags, ~(uint32_t)GS_SLOT_LEAVES, __ATOMIC_SEQ_CST);
  __atomic_store_n(&slot()->move, how, __ATOMIC_RELEASE);
  __atomic_store_n(&slot()->residency, word, __ATOMIC_RELEASE);
  gs_trace(GS_TRACE_MOVED, ORDINAL, how, __atomic_load_n(&slot()->hosted_bytes, __ATOMIC_RELAXED));
  mover()->owes = !gs_daemon_look();
}

/* ---- away ---- */

static void forget_wishes(void) { __atomic_fetch_and(&slot()->flags, ~(uint32_t)GS_SLOT_WANTS, __ATOMIC_SEQ_CST); }

static void open_again(void) {
  forget_wishes();
  set_state(GS_OPEN);
}

static void stay_away(void) {
  forget_wishes(); /* who waits now says so again */
  set_state(GS_AWAY);
}

/* Closes the passage. What was copied ahead is current if nobody has passed since. */
static void close_passage(void) {
  uint32_t watched = GS_WATCHED;
  if (__atomic_compare_exchange_n(&gs_passage()->state, &watched, GS_MOVING, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
    return;
  __atomic_store_n(&gs_passage()->state, GS_MOVING, __ATOMIC_SEQ_CST);
  gs_move_forget();
}

static void end_watch(void) {
  uint32_t watched = GS_WATCHED;
  __atomic_compare_exchange_n(&gs_passage()->state, &watched, GS_OPEN, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

/* Whether a call waits for the memory. */
static bool is_wanted(void) {
  return __atomic_load_n(&gs_passage()->wants, __ATOMIC_SEQ_CST) || __atomic_load_n(&slot()->waiting, __ATOMIC_SEQ_CST);
}

static enum gs_move go_away(uint32_t word) {
  if (!gs_time())
    return GS_MOVED; /* no context: nothing to move */
  if (gs_others_use_memory())
    return GS_MOVE_UNSEEN;
  enum gs_move how = gs_move_prepare(ORDINAL);
  if (how != GS_MOVED)
    return how;
  close_passage();
  how = gs_quiesce(ORDINAL, word);
  if (how == GS_MOVED)
    how = gs_move_prepare(ORDINAL); /* for what was allocated meanwhile */
  if (how != GS_MOVED)
    return how;
  if (gs_move_copies()) { /* who waits for the room may begin to come in */
    __atomic_fetch_or(&slot()->flags, GS_SLOT_LEAVES, __ATOMIC_SEQ_CST);
    mover()->owes = !gs_daemon_look();
  }
  return gs_move_out(ORDINAL, word);
}

/* What is here is here to stay: a word that says otherwise is without a daemon. */
static void note_return(uint32_t word) {
  if (meant(word) == GS_HOSTED)
    __atomic_store_n(&gs_passage()->returned, word, __ATOMIC_SEQ_CST);
}

/* Brings everything back; the program waits until all is there. False: the word has changed before, or the program
 * exits. */
static bool come_back(uint32_t word) {
  bool told = false;
  if (state() == GS_OPEN || state() == GS_WATCHED) {
    note_return(word);
    forget_wishes();
    gs_futex_wake(&gs_passage()->state, INT32_MAX, false); /* who waits for room only looks again */
    return true;
  }
  set_state(GS_MOVING); /* before may_drive: a thread that goes on to exit looks at it (process/passage/room.c) */
  uint64_t began = gs_now();
  while (may_drive() && word_now() == word) {
    enum gs_move how = gs_move_in(ORDINAL, gs_now() - began >= INSIDE_NS);
    if (how == GS_MOVED) {
      note_return(word);
      open_again();
      return true;
    }
    /* a call that passed before is about to return; or the room is still being left, and comes free piece by piece */
    bool leaves = how == GS_MOVE_NO_DEVICE && gs_now() - began < LEFT_NS, soon = how == GS_MOVE_WORKING || leaves;
    if (!told && !soon)
      acknowledge(word, how);
    told = told || !soon;
    gs_latch_drop(&mover()->driving);
    gs_nap(leaves ? LEFT_SOON_NS : soon ? SOON_NS : AGAIN_NS);
    gs_latch_take(&mover()->driving);
  }
  if (exiting())
    stay_away();
  return false;
}

static void carry_out(uint32_t word) {
  enum gs_move how = GS_MOVED;
  __atomic_fetch_and(&slot()->flags, ~(uint32_t)GS_SLOT_RETURNS, __ATOMIC_SEQ_CST); /* said of the word before */
  if (meant(word) == GS_HOSTED) {
    how = state() == GS_AWAY ? GS_MOVED : go_away(word);
    if (how == GS_MOVED)
      stay_away();
    else if (state() == GS_MOVING && gs_move_in(ORDINAL, false) == GS_MOVED)
      open_again();
    else if (state() == GS_MOVING)
      stay_away(); /* a part of it is hosted: calls wait until it can come back */
  } else if (!come_back(word)) {
    return;
  } else if (meant(word) == GS_RESIDENT) {
    end_watch();
    gs_move_forget();
  }
  mover()->word = word;
  acknowledge(word, how);
  if (meant(word) == GS_RESIDENT)
    gs_host_drop(ORDINAL); /* to unpin takes long, and the program has no lease before the answer */
}

/* The program exits: nothing leaves any more, but handlers that run after stop_at_exit may use what is hosted. When it is
 * back they go on, and the driver may end: its host memory ends with the process. */
static void serve_exit(uint32_t word) {
  /* a move was given up as the program began to exit: calls that wait say so again */
  if (state() == GS_MOVING && (meant(word) == GS_HOSTED || !may_drive()))
    stay_away();
  if (word == mover()->word || meant(word) == GS_HOSTED || !may_drive() || !come_back(word))
    return;
  mover()->word = word;
  acknowledge(word, GS_MOVED);
}

/* ---- ahead ---- */

struct quiet {
  uint64_t launches, since;
};

static bool is_quiet(struct quiet *quiet, uint64_t now) {
  uint64_t launches = __atomic_load_n(&slot()->launches, __ATOMIC_RELAXED);
  bool works =
      __atomic_load_n(&slot()->inflight, __ATOMIC_RELAXED) || __atomic_load_n(&slot()->waiting, __ATOMIC_RELAXED);
  if (launches != quiet->launches || works || quiet->since == 0)
    *quiet = (struct quiet){launches, now};
  return now - quiet->since >= QUIET_NS;
}

/* Copies ahead while the program does nothing, where the daemon wants that. */
static void copy_ahead(struct quiet *quiet, uint64_t now) {
  uint32_t open = GS_OPEN;
  bool still = is_quiet(quiet, now);
  if (meant(mover()->word) != GS_PREPARED || state() != GS_OPEN || !gs_time() || !still)
    return;
  quiet->since = 0; /* where there is no host memory, it is asked for again only after a while */
  gs_move_forget();
  /* others change memory unseen, which may go on while the copies are there, and then end */
  if (gs_others_use_memory() || gs_move_prepare(ORDINAL) != GS_MOVED ||
      !__atomic_compare_exchange_n(&gs_passage()->state, &open, GS_WATCHED, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
    return;
  if (!gs_is_quiet(ORDINAL) || !gs_move_ahead(ORDINAL, mover()->word))
    end_watch();
  gs_movable_publish();
  mover()->owes = !gs_daemon_look();
}

/* ---- the thread ---- */

/* What the daemon could not be told before. */
static void tell_again(void) {
  if (mover()->owes)
    mover()->owes = !gs_daemon_look();
  if (mover()->host.owed && state() == GS_OPEN && meant(mover()->word) == GS_RESIDENT)
    gs_host_drop(ORDINAL);
}

/* A wish is said before its call is counted as one that waits, and outlives it. Without such a call it is forgotten: who
 * waits from now on says so again, and who did meanwhile is seen here. */
static bool hears_wish(void) {
  if (!(__atomic_load_n(&slot()->flags, __ATOMIC_SEQ_CST) & GS_SLOT_WANTS))
    return false;
  if (is_wanted())
    return true;
  forget_wishes();
  if (!is_wanted())
    return false;
  __atomic_fetch_or(&slot()->flags, GS_SLOT_WANTS, __ATOMIC_SEQ_CST);
  return true;
}

/* The daemon's heartbeat, when it last changed, and when that was looked at. */
struct heard {
  uint32_t beat;
  uint64_t at, looked;
};

/* Whether there has been no daemon for ALONE_NS. The gate's `local` says so only to a program that submits. */
static bool is_alone(struct heard *heard, uint64_t now) {
  uint32_t beat = __atomic_load_n(&gs_process->limits->heartbeat, __ATOMIC_RELAXED);
  /* after a long stop of this process, or of the machine, the last beat is old because of that */
  if (beat != heard->beat || now - heard->looked >= ALONE_NS)
    *heard = (struct heard){.beat = beat, .at = now};
  heard->looked = now;
  return now - heard->at >= ALONE_NS;
}

/* Whether a daemon that has not heard of this process has the grant. */
static bool daemon_is_new(void) {
  return __atomic_load_n(&gs_process->limits->daemon_epoch, __ATOMIC_SEQ_CST) !=
         __atomic_load_n(&gs_process->daemon_epoch, __ATOMIC_ACQUIRE);
}

/* Without a daemon, into room that is still free. It is said before it is looked at once more: a daemon writes its epoch
 * before it reads what is said, so one that starts meanwhile counts the room as taken. */
static void come_back_alone(void) {
  uint32_t word = word_now();
  __atomic_fetch_or(&slot()->flags, GS_SLOT_RETURNS, __ATOMIC_SEQ_CST);
  if (!daemon_is_new() && __atomic_load_n(&limits()->room, __ATOMIC_SEQ_CST) && come_back(word))
    acknowledge(word, GS_MOVED);
  else
    __atomic_fetch_and(&slot()->flags, ~(uint32_t)GS_SLOT_RETURNS, __ATOMIC_SEQ_CST);
}

/* Whether calls may wait for memory, or for room. */
static bool is_away(void) { return state() == GS_AWAY || (meant(mover()->word) == GS_HOSTED && gs_room_away()); }

/* A call waits for memory that is hosted: the daemon hears of it, or, where there is none and the room is still free, the
 * memory comes back by itself. */
static void hear_wishes(uint64_t now, uint64_t *told, struct heard *heard) {
  bool alone = is_alone(heard, now);
  if (!is_away() || !hears_wish()) {
    *told = 0;
    return;
  }
  if (alone && __atomic_load_n(&limits()->room, __ATOMIC_ACQUIRE)) {
    come_back_alone();
  } else if (*told == 0 || now - *told >= LOOK_AGAIN_NS) {
    *told = now;
    gs_daemon_look();
  }
}

static void *mover_thread(void *unused) {
  struct quiet quiet = {0, 0};
  struct heard heard = {0};
  uint64_t told = 0;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  (void)unused;
  prctl(PR_SET_NAME, "gpushare-mover");
  gs_latch_take(&mover()->driving);
  if (!exiting())
    gs_real.cuThreadExchangeStreamCaptureMode(&mode);
  for (;;) {
    uint32_t calls = __atomic_load_n(&gs_passage()->calls, __ATOMIC_ACQUIRE), word = word_now();
    uint64_t now = gs_now(), wait = !exiting() && gs_movable_settle() ? SETTLE_NS : TICK_NS;
    if (exiting()) {
      serve_exit(word);
    } else if (word != mover()->word) {
      carry_out(word);
    } else {
      copy_ahead(&quiet, now);
    }
    gs_fixed_publish(&mover()->told, now);
    hear_wishes(now, &told, &heard);
    if (!exiting())
      tell_again();
    gs_latch_drop(&mover()->driving);
    struct gs_futex_waiter either[] = {gs_waits_for(&limits()->residency, word, true),
                                       gs_waits_for(&gs_passage()->calls, calls, false)};
    if (!gs_futex_wait_any(either, 2, wait))
      gs_futex_wait(&limits()->residency, word, wait < POLL_NS ? wait : POLL_NS, true);
    gs_latch_take(&mover()->driving);
  }
  return NULL; /* never: it ends with the process */
}

/* As the gate thread's: the driver tears itself down in handlers that run after this one. Others may run before that. */
static void stop_at_exit(void) {
  struct gs_mover *own = mover();
  if (!own)
    return;
  __atomic_store_n(&gs_passage()->last, &gs_self, __ATOMIC_RELEASE);
  __atomic_store_n(&own->exits, 1, __ATOMIC_RELEASE);
  gs_mover_call(gs_passage());
  bool out = false;
  for (int i = 0; i < 10000 && !(out = gs_latch_try(&own->driving)); i++)
    nanosleep(&(struct timespec){0, 100000}, NULL);
  if (out)
    gs_latch_drop(&own->driving);
}

bool gs_mover_start(void) {
  struct gs_mover *own = __atomic_load_n(&gs_process->mover, __ATOMIC_ACQUIRE), *fresh;
  if (own)
    return !own->failed;
  fresh = gs_passage() ? gs_private_map(sizeof *fresh) : NULL;
  if (!fresh)
    return false;
  fresh->word = gs_passage()->word; /* it may have changed while the driver was initialised */
  fresh->owes = meant(fresh->word) == GS_HOSTED;
  if (!__atomic_compare_exchange_n(&gs_process->mover, &own, fresh, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    munmap(fresh, sizeof *fresh);
    return !own->failed;
  }
  __atomic_store_n(&slot()->residency, fresh->word, __ATOMIC_RELEASE);
  if (gs_thread_start(mover_thread, NULL) != 0) {
    gs_say("no thread to move memory: this process keeps its memory on the device");
    __atomic_store_n(&fresh->failed, true, __ATOMIC_RELEASE);
    return false;
  }
  atexit(stop_at_exit);
  return true;
}
