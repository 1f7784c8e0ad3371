/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * The BPF programs of the guard. The kernel offers some helpers only to programs under its own licence, hence the
 * choice. scripts/guard_programs.py compiles this file into guard_programs.h, which is what is built into the product.
 *
 * An ioctl's parameters lie in the process's memory, where its other threads can change them: they are read before and
 * after the driver has read them, and the larger size counts. Whether the driver agreed is known from the system call's
 * result and the status in that same memory. */
#include "guard/asked.h"
#include "guard/kernel.h"

#define OBJECTS_MAX 8192 /* per cgroup: others need room in the maps too */
#define PARENTS_MAX 2048
#define PENDING_MAX 1024
#define PATIENCE_NS (10ULL * 1000 * 1000 * 1000) /* a process may be stopped while it exits */

INLINE void report(uint32_t kind, uint64_t cgroup, uint64_t bytes, const struct gs_attempt *attempt, uint64_t used,
                   const struct gs_guard_limit *limit, uint32_t signal) {
  struct gs_guard_event *event = bpf_ringbuf_reserve(&gs_map_events, sizeof *event, 0);
  uint64_t who = bpf_get_current_pid_tgid();
  if (!event)
    return;
  event->t_ns = bpf_ktime_get_ns();
  event->cgroup = cgroup;
  event->bytes = bytes;
  event->used = used;
  event->limit = limit ? limit->bytes : 0;
  event->kind = kind;
  event->pid = who >> 32;
  event->tid = (uint32_t)who;
  event->client = attempt ? attempt->client : 0;
  event->object = attempt ? attempt->object : 0;
  event->signal = signal;
  bpf_get_current_comm(event->comm, sizeof event->comm);
  bpf_ringbuf_submit(event, 0);
}

INLINE void ioctl_begins(const struct gs_settings *set, uint32_t fd, uint32_t cmd, uint64_t at) {
  struct gs_guard_layout *lay = layout();
  struct gs_attempt attempt = {};
  struct gs_guard_books *books;
  uint64_t who = bpf_get_current_pid_tgid();
  uint32_t number = cmd & 0xff, size = cmd >> 16 & 0x3fff;
  struct gs_guard_escape *escape;
  if (!lay)
    return;
  escape = &lay->escapes[number];
  if (escape->kind == GS_ESCAPE_OTHER)
    return;
  attempt.file = file_of(set, fd);
  if (!attempt.file || !guarded(set, lay, attempt.file))
    return;
  books = charged(&attempt.cgroup);
  if (!books)
    return;
  if (escape->kind == GS_ESCAPE_XFER) {
    struct gs_xfer xfer;
    if (bpf_probe_read_user(&xfer, sizeof xfer, (void *)at))
      return;
    at = xfer.at;
    size = xfer.size;
    number = xfer.number & 0xff;
    escape = &lay->escapes[number];
    if (escape->kind == GS_ESCAPE_OTHER || escape->kind == GS_ESCAPE_XFER)
      return;
  }
  attempt.at = at;
  attempt.kind = escape->kind;
  attempt.status = escape->long_size && size == escape->long_size ? escape->long_status : escape->status;
  if (!understood(lay, &attempt))
    return;
  if (__sync_fetch_and_add(&books->pending, 1) >= PENDING_MAX ||
      bpf_map_update_elem(&gs_map_attempts, &who, &attempt, BPF_ANY)) {
    /* The attempt cannot be followed: it counts as allocated until the cgroup is forgotten. */
    __sync_fetch_and_add(&books->pending, -1);
    __sync_fetch_and_add(&books->used, attempt.bytes);
    __sync_fetch_and_add(&books->lost, attempt.bytes);
    report(GS_GUARD_UNRECORDED, attempt.cgroup, attempt.bytes, &attempt, books->used, 0, 0);
  }
}

/* Whether this thread is in a 32-bit system call, which has other numbers and registers. */
INLINE int is_compat(const struct gs_settings *set) {
  return set->compat_mask && peek32(bpf_get_current_task() + set->task_compat) & set->compat_mask;
}

SECTION("program/enter") int enter(const uint64_t *args) {
  struct gs_settings *set = settings();
  uint64_t regs = args[0], number = args[1];
  if (!set)
    return 0;
  if (number == set->ioctl || number == set->ioctl_x32) {
    ioctl_begins(set, peek32(regs + set->arguments[0]), peek32(regs + set->arguments[1]),
                 peek(regs + set->arguments[2]));
  } else if (number == set->ioctl_compat && is_compat(set)) {
    ioctl_begins(set, peek32(regs + set->arguments_compat[0]), peek32(regs + set->arguments_compat[1]),
                 peek32(regs + set->arguments_compat[2]));
  }
  return 0;
}

/* Drops a handle to memory and, with the last handle, the memory. */
INLINE void drop(const struct gs_object_key *at, const struct gs_object *object) {
  struct gs_object_key key = *at;
  uint64_t id = object->memory;
  struct gs_memory *memory;
  struct gs_guard_books *books;
  if (bpf_map_delete_elem(&gs_map_objects, &key))
    return; /* another processor was first */
  memory = bpf_map_lookup_elem(&gs_map_memory, &id);
  if (!memory || __sync_fetch_and_add(&memory->handles, -1) != 1)
    return;
  uint64_t cgroup = memory->cgroup, bytes = memory->bytes;
  uint32_t state = __sync_lock_test_and_set(&memory->state, GS_MEMORY_GONE);
  bpf_map_delete_elem(&gs_map_memory, &id);
  books = bpf_map_lookup_elem(&gs_map_books, &cgroup);
  if (!books)
    return;
  __sync_fetch_and_add(&books->used, -bytes);
  if (state == GS_MEMORY_DOUBTED)
    __sync_fetch_and_add(&books->doubt, -bytes);
  __sync_fetch_and_add(&books->frees, 1);
  __sync_fetch_and_add(&books->objects, -1);
}

INLINE void doubt(const struct gs_object *object) {
  uint64_t id = object->memory;
  struct gs_memory *memory = bpf_map_lookup_elem(&gs_map_memory, &id);
  struct gs_settings *set = settings();
  struct gs_guard_books *books;
  if (!memory || !set)
    return;
  uint64_t cgroup = memory->cgroup;
  /* Set before the state, so that no look of this round settles it; and only once, or a tenant could keep it in
   * doubt. */
  if (*(volatile uint32_t *)&memory->state == GS_MEMORY_HELD) {
    *(volatile uint64_t *)&memory->doubted = set->round;
    *(volatile uint64_t *)&memory->doubted_ns = bpf_ktime_get_ns();
  }
  books = bpf_map_lookup_elem(&gs_map_books, &cgroup);
  if (books && __sync_val_compare_and_swap(&memory->state, GS_MEMORY_HELD, GS_MEMORY_DOUBTED) == GS_MEMORY_HELD)
    __sync_fetch_and_add(&books->doubt, memory->bytes);
}

EACH long below(void *map, struct gs_object_key *key, struct gs_object *object, struct gs_below *of) {
  if (key->file == of->file && key->client == of->client && (of->object == of->client || object->parent == of->object))
    drop(key, object);
  return 0;
}

EACH long of_process(void *map, struct gs_object_key *key, struct gs_object *object, uint32_t *pid) {
  if (object->pid == *pid)
    doubt(object);
  return 0;
}

/* Memory released by closing a descriptor passes no tracepoint. */
EACH long if_closed(void *map, struct gs_object_key *key, struct gs_object *object, void *unused) {
  struct gs_settings *set = settings();
  struct gs_guard_layout *lay = layout();
  if (set && lay && !is_open(set, lay, key->file))
    drop(key, object);
  return 0;
}

EACH long unless_open(void *map, struct gs_object_key *key, struct gs_object *object, struct gs_round *round) {
  uint64_t file = key->file, id = object->memory, *at;
  struct gs_settings *set = settings();
  struct gs_guard_layout *lay = layout();
  struct gs_memory *memory;
  struct gs_guard_books *books;
  if (!set || !lay || object->round == round->number)
    return 0; /* made since the look began */
  at = bpf_map_lookup_elem(&gs_map_seen, &file);
  int seen = round->all || (at && *at == round->number);
  if (!seen && !is_open(set, lay, file)) {
    drop(key, object);
    return 0;
  }
  memory = bpf_map_lookup_elem(&gs_map_memory, &id);
  if (!memory || memory->doubted == round->number)
    return 0; /* the next look settles it: this one may have seen the file with a process that has ended since */
  /* No process has the file in its table: the one that had it is still exiting, or it is in a socket or mapped. */
  if (!seen && bpf_ktime_get_ns() - memory->doubted_ns < PATIENCE_NS)
    return 0;
  uint64_t cgroup = memory->cgroup;
  books = bpf_map_lookup_elem(&gs_map_books, &cgroup);
  if (books && __sync_val_compare_and_swap(&memory->state, GS_MEMORY_DOUBTED, GS_MEMORY_KEPT) == GS_MEMORY_DOUBTED)
    __sync_fetch_and_add(&books->doubt, -memory->bytes);
  return 0;
}

INLINE void freed(const struct gs_attempt *attempt) {
  struct gs_object_key key = {.file = attempt->file, .client = attempt->client, .object = attempt->object};
  struct gs_object *object = bpf_map_lookup_elem(&gs_map_objects, &key);
  uint64_t *cgroup;
  /* Looks in both maps: one entry may be left from a file that was at the same address. */
  if (object)
    drop(&key, object);
  cgroup = bpf_map_lookup_elem(&gs_map_parents, &key);
  if (!cgroup)
    return; /* no memory below it: this avoids a walk through all objects */
  uint64_t owner = *cgroup;
  if (bpf_map_delete_elem(&gs_map_parents, &key))
    return;
  struct gs_guard_books *books = bpf_map_lookup_elem(&gs_map_books, &owner);
  if (books)
    __sync_fetch_and_add(&books->parents, -1);
  struct gs_below of = {.file = key.file, .client = key.client, .object = key.object};
  bpf_for_each_map_elem(&gs_map_objects, below, &of, 0);
}

INLINE void parent(struct gs_guard_books *books, const struct gs_attempt *attempt, uint32_t object) {
  struct gs_object_key key = {.file = attempt->file, .client = attempt->client, .object = object};
  uint64_t cgroup = attempt->cgroup;
  if (books->parents < PARENTS_MAX && !bpf_map_update_elem(&gs_map_parents, &key, &cgroup, BPF_NOEXIST))
    __sync_fetch_and_add(&books->parents, 1);
}

INLINE long add(struct gs_settings *set, struct gs_guard_books *books, const struct gs_attempt *attempt,
                uint64_t memory) {
  uint64_t who = bpf_get_current_pid_tgid(), cgroup = attempt->cgroup;
  uint32_t pid = who >> 32;
  struct gs_object_key key = {.file = attempt->file, .client = attempt->client, .object = attempt->object};
  struct gs_object object = {.memory = memory, .parent = attempt->parent, .pid = pid, .round = set->round};
  struct gs_object *old = bpf_map_lookup_elem(&gs_map_objects, &key);
  if (old)
    drop(&key, old); /* its end was not seen */
  if (bpf_map_update_elem(&gs_map_objects, &key, &object, BPF_NOEXIST))
    return -1;
  parent(books, attempt, attempt->parent);
  parent(books, attempt, attempt->client);
  bpf_map_update_elem(&gs_map_holders, &pid, &cgroup, BPF_ANY);
  bpf_map_update_elem(&gs_map_clients, &key.client, &key.file, BPF_ANY);
  return 0;
}

/* Bytes that count against the limit. `drop` lowers `used` before `doubt`, so they are read in the opposite order: for
 * a moment the result may be too low, never too high. */
INLINE int64_t counted(struct gs_guard_books *books) {
  uint64_t doubt = __sync_fetch_and_add(&books->doubt, 0); /* a barrier, too */
  return (int64_t)(*(volatile uint64_t *)&books->used - doubt);
}

/* Signals the process if the limit is passed, unless enough was released unseen. */
INLINE void check(struct gs_guard_books *books, const struct gs_attempt *attempt, uint64_t bytes) {
  uint64_t cgroup = attempt->cgroup;
  struct gs_guard_limit *limit = bpf_map_lookup_elem(&gs_map_limits, &cgroup);
  if (!limit || counted(books) <= (int64_t)limit->bytes)
    return;
  bpf_for_each_map_elem(&gs_map_objects, if_closed, 0, 0);
  if (counted(books) <= (int64_t)limit->bytes)
    return;
  __sync_fetch_and_add(&books->over, 1);
  if (limit->signal)
    bpf_send_signal(limit->signal);
  report(GS_GUARD_OVER, cgroup, bytes, attempt, books->used, limit, limit->signal);
}

INLINE void allocated(struct gs_settings *set, struct gs_guard_books *books, const struct gs_attempt *attempt,
                      uint64_t bytes) {
  uint64_t id = __sync_fetch_and_add(&set->next, 1);
  struct gs_memory memory = {.cgroup = attempt->cgroup, .bytes = bytes, .handles = 1, .state = GS_MEMORY_HELD};
  __sync_fetch_and_add(&books->allocations, 1);
  __sync_fetch_and_add(&books->used, bytes);
  if (__sync_fetch_and_add(&books->objects, 1) >= OBJECTS_MAX ||
      bpf_map_update_elem(&gs_map_memory, &id, &memory, BPF_NOEXIST)) {
    __sync_fetch_and_add(&books->objects, -1);
    __sync_fetch_and_add(&books->lost, bytes);
    report(GS_GUARD_UNRECORDED, attempt->cgroup, bytes, attempt, books->used, 0, 0);
  } else if (add(set, books, attempt, id)) {
    bpf_map_delete_elem(&gs_map_memory, &id);
    __sync_fetch_and_add(&books->objects, -1);
    __sync_fetch_and_add(&books->lost, bytes);
    report(GS_GUARD_UNRECORDED, attempt->cgroup, bytes, attempt, books->used, 0, 0);
  }
  check(books, attempt, bytes);
}

/* The source may belong to another client, made through another file and perhaps in another process. Its memory stays
 * charged to the same cgroup as long as any handle exists. */
INLINE void duplicated(struct gs_settings *set, struct gs_guard_books *books, const struct gs_attempt *attempt) {
  struct gs_object_key key = {.file = attempt->file, .client = attempt->source_client, .object = attempt->source};
  struct gs_object *source = bpf_map_lookup_elem(&gs_map_objects, &key);
  if (!source) {
    uint64_t *file = bpf_map_lookup_elem(&gs_map_clients, &key.client);
    if (!file)
      return;
    key.file = *file;
    source = bpf_map_lookup_elem(&gs_map_objects, &key);
    if (!source)
      return;
  }
  uint64_t id = source->memory;
  struct gs_memory *memory = bpf_map_lookup_elem(&gs_map_memory, &id);
  if (!memory)
    return;
  /* A handle for which there is no room is never dropped: the memory stays charged. */
  __sync_fetch_and_add(&memory->handles, 1);
  add(set, books, attempt, id);
}

INLINE void ended(struct gs_settings *set, struct gs_guard_books *books, struct gs_attempt *attempt) {
  struct gs_guard_layout *lay = layout();
  uint32_t status = 0, handle = 0;
  uint64_t bytes = 0;
  if (!lay)
    return;
  long unread = bpf_probe_read_user(&status, sizeof status, (void *)(attempt->at + attempt->status));
  if (attempt->kind == GS_ESCAPE_FREE) {
    if (!unread && !status)
      freed(attempt);
    return;
  }
  if (attempt->kind == GS_ESCAPE_DUP) {
    if (unread || status)
      return;
    if (!bpf_probe_read_user(&handle, 4, (void *)(attempt->at + 8)))
      attempt->object = handle;
    duplicated(set, books, attempt);
    return;
  }
  struct gs_attempt after = *attempt;
  after.known = asked(lay, &after, &bytes);
  if (after.kind != attempt->kind)
    after.known = 0;
  if (attempt->known == 0 && after.known == 0)
    return;
  if (bytes < attempt->bytes)
    bytes = attempt->bytes;
  if (status) {
    __sync_fetch_and_add(&books->failed, 1);
    __sync_fetch_and_add(&books->failed_bytes, bytes);
    return;
  }
  struct gs_guard_limit *limit = bpf_map_lookup_elem(&gs_map_limits, &attempt->cgroup);
  if (attempt->known < 0 && after.known < 0) {
    __sync_fetch_and_add(&books->over, 1);
    if (limit && limit->signal)
      bpf_send_signal(limit->signal);
    report(GS_GUARD_HIDDEN, attempt->cgroup, 0, attempt, books->used, limit, limit ? limit->signal : 0);
    return;
  }
  if (attempt->known >= 0 && after.known >= 0 &&
      (attempt->class != after.class || attempt->parameters != after.parameters))
    report(GS_GUARD_CHANGED, attempt->cgroup, bytes, attempt, books->used, limit, 0);
  if (after.known >= 0) {
    attempt->object = after.object;
    if (attempt->known < 0) {
      attempt->client = after.client;
      attempt->parent = after.parent;
    }
  }
  allocated(set, books, attempt, bytes);
}

SECTION("program/leave") int leave(const uint64_t *args) {
  struct gs_settings *set = settings();
  uint64_t who, regs = args[0];
  uint32_t number;
  struct gs_attempt *found;
  struct gs_guard_books *books;
  if (!set)
    return 0;
  number = peek32(regs + set->number);
  if (number != set->ioctl && number != set->ioctl_x32 && number != set->ioctl_compat)
    return 0;
  who = bpf_get_current_pid_tgid();
  found = bpf_map_lookup_elem(&gs_map_attempts, &who);
  if (!found)
    return 0;
  struct gs_attempt attempt = *found;
  bpf_map_delete_elem(&gs_map_attempts, &who);
  books = bpf_map_lookup_elem(&gs_map_books, &attempt.cgroup);
  if (!books)
    return 0;
  __sync_fetch_and_add(&books->pending, -1);
  if (args[1] == 0)
    ended(set, books, &attempt);
  return 0;
}

/* A thread ends. A process's descriptors go with its last thread, unless a child or another process has them too. */
SECTION("program/exited") int exited(const uint64_t *args) {
  struct gs_settings *set = settings();
  uint32_t pid = bpf_get_current_pid_tgid() >> 32;
  uint64_t *cgroup;
  if (!set)
    return 0;
  cgroup = bpf_map_lookup_elem(&gs_map_holders, &pid);
  if (!cgroup || peek32(peek(bpf_get_current_task() + set->task_signal) + set->signal_live))
    return 0;
  uint64_t owner = *cgroup;
  bpf_map_delete_elem(&gs_map_holders, &pid);
  bpf_for_each_map_elem(&gs_map_objects, of_process, &pid, 0);
  report(GS_GUARD_LEFT, owner, 0, 0, 0, 0, 0);
  return 0;
}

/* Run by user space before `look`: objects made from now on are not judged by it. */
SECTION("program/begin") int begin(const uint64_t *args) {
  struct gs_settings *set = settings();
  if (!set)
    return 0;
  set->unseen = 0;
  __sync_fetch_and_add(&set->round, 1);
  return 0;
}

/* An iterator over the descriptors of all processes: notes the files of guarded devices. Skips processes that are
 * exiting, whose descriptors may still be there. */
SECTION("program/look") int look(const void *context) {
  struct gs_settings *set = settings();
  struct gs_guard_layout *lay = layout();
  uint64_t words[4] = {}; /* struct bpf_iter__task_file: meta, task, fd, file */
  if (!set || !lay || bpf_probe_read_kernel(words, sizeof words, context) || !words[1] || !words[3])
    return 0;
  uint64_t file = words[3];
  if (!peek32(peek(words[1] + set->task_signal) + set->signal_live) || !guarded(set, lay, file))
    return 0;
  uint64_t round = set->round;
  if (bpf_map_update_elem(&gs_map_seen, &file, &round, BPF_ANY))
    set->unseen = 1;
  return 0;
}

/* Run by user space after `look`. */
SECTION("program/settle") int settle(const uint64_t *args) {
  struct gs_settings *set = settings();
  struct gs_round round = {};
  if (!set)
    return 0;
  round.number = set->round;
  round.all = set->unseen;
  bpf_for_each_map_elem(&gs_map_objects, unless_open, &round, 0);
  return 0;
}
