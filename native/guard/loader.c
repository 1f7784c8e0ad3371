#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guard/btf.h"
#include "guard/call.h"
#include "guard/gs_guard.h"
#include "guard/maps.h"
#include "guard/ring.h"

enum {
  MAP_SETTINGS,
  MAP_LAYOUT,
  MAP_LIMITS,
  MAP_BOOKS,
  MAP_ATTEMPTS,
  MAP_OBJECTS,
  MAP_MEMORY,
  MAP_PARENTS,
  MAP_HOLDERS,
  MAP_SEEN,
  MAP_CLIENTS,
  MAP_EVENTS,
  MAPS,
};

#include "guard/guard_programs.h"

static const struct {
  const char *name;
  uint32_t type, key, value, entries;
} maps[MAPS] = {
    [MAP_SETTINGS] = {"settings", MAP_TYPE_ARRAY, 4, sizeof(struct gs_settings), 1},
    [MAP_LAYOUT] = {"layout", MAP_TYPE_ARRAY, 4, sizeof(struct gs_guard_layout), 1},
    [MAP_LIMITS] = {"limits", MAP_TYPE_HASH, 8, sizeof(struct gs_guard_limit), 8192},
    [MAP_BOOKS] = {"books", MAP_TYPE_HASH, 8, sizeof(struct gs_guard_books), 8192},
    [MAP_ATTEMPTS] = {"attempts", MAP_TYPE_HASH, 8, sizeof(struct gs_attempt), 16384},
    [MAP_OBJECTS] = {"objects", MAP_TYPE_HASH, sizeof(struct gs_object_key), sizeof(struct gs_object), 32768},
    [MAP_MEMORY] = {"memory", MAP_TYPE_HASH, 8, sizeof(struct gs_memory), 32768},
    [MAP_PARENTS] = {"parents", MAP_TYPE_HASH, sizeof(struct gs_object_key), 8, 16384},
    [MAP_HOLDERS] = {"holders", MAP_TYPE_HASH, 4, 8, 16384},
    [MAP_SEEN] = {"seen", MAP_TYPE_HASH, 8, 8, 16384},
    /* Clients that have ended make room automatically. */
    [MAP_CLIENTS] = {"clients", MAP_TYPE_LRU_HASH, 4, 8, 16384},
    [MAP_EVENTS] = {"events", MAP_TYPE_RINGBUF, 0, 0, GS_RING_BYTES},
};

enum { ENTER, LEAVE, EXITED, BEGIN, LOOK, SETTLE, PROGRAMS };
enum { LINKS = EXITED + 1 };

/* Those with a tracepoint are attached to it. The others are run by gs_guard_settle. */
static const struct {
  const char *tracepoint, *name;
  const struct program_text *text;
} programs[PROGRAMS] = {
    [ENTER] = {"sys_enter", "enter", &text_enter},
    [LEAVE] = {"sys_exit", "leave", &text_leave},
    [EXITED] = {"sched_process_exit", "exited", &text_exited},
    [BEGIN] = {NULL, "begin", &text_begin},
    [LOOK] = {NULL, "look", &text_look},
    [SETTLE] = {NULL, "settle", &text_settle},
};

struct gs_guard {
  struct gs_settings settings;
  int maps[MAPS], programs[PROGRAMS], links[LINKS];
  struct gs_ring ring;
};

static void close_all(int *fds, int count) {
  for (int i = 0; i < count; i++) {
    if (fds[i] >= 0)
      close(fds[i]);
    fds[i] = -1;
  }
}

void gs_guard_close(struct gs_guard *guard) {
  close_all(guard->links, LINKS);
  close_all(guard->programs, PROGRAMS);
  gs_ring_close(&guard->ring);
  close_all(guard->maps, MAPS);
  free(guard);
}

static int make_maps(struct gs_guard *guard, struct gs_err *err) {
  for (int i = 0; i < MAPS; i++) {
    guard->maps[i] = bpf_map_new(maps[i].name, maps[i].type, maps[i].key, maps[i].value, maps[i].entries, 0);
    if (guard->maps[i] < 0)
      return gs_fail(err, guard->maps[i], "the kernel refused the BPF map %s: %s%s", maps[i].name,
                     strerror(-guard->maps[i]), guard->maps[i] == -EPERM ? ": it needs CAP_BPF, or root" : "");
  }
  return gs_ring_open(&guard->ring, guard->maps[MAP_EVENTS], err);
}

static int load(struct gs_guard *guard, int which, uint32_t iterator, struct gs_err *err) {
  struct program program = {
      .name = programs[which].name,
      .type = which == LOOK ? PROGRAM_TRACING : PROGRAM_RAW_TRACEPOINT,
      .attach = which == LOOK ? ATTACH_ITERATOR : 0,
      .attach_to = which == LOOK ? iterator : 0,
      .text = programs[which].text,
  };
  guard->programs[which] = bpf_program_load(&program, guard->maps, err);
  return guard->programs[which] < 0 ? guard->programs[which] : 0;
}

int gs_guard_open(const struct gs_guard_layout *layout, struct gs_guard **out, struct gs_err *err) {
  struct gs_guard *guard = calloc(1, sizeof *guard);
  uint32_t iterator = 0;
  if (!guard)
    return gs_fail(err, -ENOMEM, "out of memory");
  memset(guard->maps, -1, sizeof guard->maps);
  memset(guard->programs, -1, sizeof guard->programs);
  memset(guard->links, -1, sizeof guard->links);
  int status = gs_kernel_read(&guard->settings, &iterator, err);
  if (!status)
    status = make_maps(guard, err);
  for (int i = 0; !status && i < PROGRAMS; i++)
    status = load(guard, i, iterator, err);
  guard->settings.round = 1;
  if (!status)
    status = bpf_map_set(guard->maps[MAP_SETTINGS], &(uint32_t){0}, &guard->settings, 0);
  if (!status)
    status = gs_guard_set_layout(guard, layout, err);
  if (status) {
    gs_guard_close(guard);
    return status;
  }
  *out = guard;
  return 0;
}

int gs_guard_set_layout(struct gs_guard *guard, const struct gs_guard_layout *layout, struct gs_err *err) {
  int status = bpf_map_set(guard->maps[MAP_LAYOUT], &(uint32_t){0}, layout, 0);
  return status ? gs_fail(err, status, "the driver's layout cannot be set: %s", strerror(-status)) : 0;
}

int gs_guard_attach(struct gs_guard *guard, struct gs_err *err) {
  /* Attaches to the end of ioctls before their begin, so that none is seen to begin and not to end. */
  static const int order[LINKS] = {EXITED, LEAVE, ENTER};
  for (int i = 0; i < LINKS; i++) {
    int which = order[i];
    if (guard->links[which] >= 0)
      continue;
    guard->links[which] = bpf_tracepoint_open(programs[which].tracepoint, guard->programs[which]);
    if (guard->links[which] < 0) {
      int status = guard->links[which];
      gs_guard_detach(guard);
      return gs_fail(err, status, "the tracepoint %s cannot be used: %s", programs[which].tracepoint,
                     strerror(-status));
    }
  }
  return 0;
}

void gs_guard_detach(struct gs_guard *guard) { close_all(guard->links, LINKS); }

int gs_guard_limit(struct gs_guard *guard, uint64_t cgroup, const struct gs_guard_limit *limit, struct gs_err *err) {
  static const struct gs_guard_books none;
  int status = bpf_map_set(guard->maps[MAP_LIMITS], &cgroup, limit, 0);
  if (!status)
    status = bpf_map_set(guard->maps[MAP_BOOKS], &cgroup, &none, 1); /* BPF_NOEXIST */
  if (status && status != -EEXIST)
    return gs_fail(err, status, "cgroup %llu cannot be limited: %s", (unsigned long long)cgroup, strerror(-status));
  return 0;
}

int gs_guard_books(struct gs_guard *guard, uint64_t cgroup, struct gs_guard_books *books, struct gs_err *err) {
  int status = bpf_map_get(guard->maps[MAP_BOOKS], &cgroup, books);
  if (status)
    return gs_fail(err, status, "cgroup %llu is not limited: %s", (unsigned long long)cgroup, strerror(-status));
  return 0;
}

void gs_guard_forget(struct gs_guard *guard, uint64_t cgroup) {
  bpf_map_drop(guard->maps[MAP_BOOKS], &cgroup);
  bpf_map_drop(guard->maps[MAP_LIMITS], &cgroup);
}

int gs_guard_events_fd(const struct gs_guard *guard) { return guard->maps[MAP_EVENTS]; }

int gs_guard_events(struct gs_guard *guard, struct gs_guard_event *out, uint32_t count) {
  return gs_ring_read(&guard->ring, out, count);
}

/* Forgets the files that this look has not seen. */
static void forget_files(struct gs_guard *guard, uint64_t round) {
  uint64_t file, next, seen;
  int more = bpf_map_next(guard->maps[MAP_SEEN], NULL, &next);
  while (!more) {
    file = next;
    more = bpf_map_next(guard->maps[MAP_SEEN], &file, &next);
    if (!bpf_map_get(guard->maps[MAP_SEEN], &file, &seen) && seen != round)
      bpf_map_drop(guard->maps[MAP_SEEN], &file);
  }
}

int gs_guard_settle(struct gs_guard *guard, struct gs_err *err) {
  char nothing[64];
  int status = bpf_run(guard->programs[BEGIN]);
  if (status < 0)
    return gs_fail(err, status, "a BPF program cannot be run: %s", strerror(-status));
  int fd = bpf_iterator_open(guard->programs[LOOK]);
  if (fd < 0)
    return gs_fail(err, fd, "the descriptors cannot be looked through: %s", strerror(-fd));
  ssize_t got = 0;
  do {
    got = read(fd, nothing, sizeof nothing);
  } while (got > 0 || (got < 0 && (errno == EINTR || errno == EAGAIN)));
  status = got < 0 ? -errno : 0;
  close(fd);
  if (status)
    return gs_fail(err, status, "the descriptors cannot be looked through: %s", strerror(-status));
  status = bpf_run(guard->programs[SETTLE]);
  if (status < 0)
    return gs_fail(err, status, "a BPF program cannot be run: %s", strerror(-status));
  struct gs_settings now;
  if (!bpf_map_get(guard->maps[MAP_SETTINGS], &(uint32_t){0}, &now))
    forget_files(guard, now.round);
  return 0;
}

static _Noreturn void ask(const struct gs_guard_layout *layout, int procs, int fd, uint32_t cmd, uint64_t bytes) {
  uint64_t parameters[32] = {0};
  struct {
    struct gs_alloc_head head;
    uint64_t rest[4];
  } alloc = {.head = {.client = 1, .parent = 2, .object = 3, .class = layout->classes[0]}};
  alloc.head.parameters = (uint64_t)(uintptr_t)parameters;
  if (layout->memory_size + sizeof bytes <= sizeof parameters)
    memcpy((char *)parameters + layout->memory_size, &bytes, sizeof bytes);
  if (write(procs, "0", 1) != 1)
    _exit(1);
  _exit(ioctl(fd, cmd, &alloc) ? 2 : 0);
}

int gs_guard_try(const struct gs_guard_layout *layout, int procs, int fd, uint32_t cmd, uint64_t bytes, int *status,
                 struct gs_err *err) {
  pid_t child = fork();
  if (child < 0)
    return gs_fail(err, -errno, "no process can be made: %s", strerror(errno));
  if (!child)
    ask(layout, procs, fd, cmd, bytes);
  while (waitpid(child, status, 0) < 0)
    if (errno != EINTR)
      return gs_fail(err, -errno, "a child is lost: %s", strerror(errno));
  return 0;
}
