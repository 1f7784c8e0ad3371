/* The guard's BPF programs in a modelled kernel, with its processes, descriptors and files, and a driver that knows
 * exactly which file holds what. Each call below is one step, so that a test chooses their order (test_order.py). There
 * is one cgroup, number 1. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* In place of guard/types.h. */
#define GS_GUARD_TYPES_H
#define SECTION(name)
#define INLINE static inline
#define EACH static
enum { BPF_ANY, BPF_NOEXIST };
static void *bpf_map_lookup_elem(void *map, const void *key);
static long bpf_map_update_elem(void *map, const void *key, const void *value, uint64_t flags);
static long bpf_map_delete_elem(void *map, const void *key);
static long bpf_for_each_map_elem(void *map, void *each, void *with, uint64_t flags);
static uint64_t bpf_ktime_get_ns(void);
static uint64_t bpf_get_current_pid_tgid(void);
static uint64_t bpf_get_current_task(void);
static uint64_t bpf_get_current_cgroup_id(void);
static uint64_t bpf_get_current_ancestor_cgroup_id(int level);
static long bpf_get_current_comm(void *out, uint32_t size);
static long bpf_send_signal(uint32_t signal);
static long bpf_probe_read_user(void *out, uint32_t size, const void *at);
static long bpf_probe_read_kernel(void *out, uint32_t size, const void *at);
static void *bpf_ringbuf_reserve(void *ring, uint64_t size, uint64_t flags);
static void bpf_ringbuf_submit(void *record, uint64_t flags);

#include "guard/guard.bpf.c"

enum { PROCESSES = 6, FDS = 4, FILES = 256, OBJECTS = 256, NODE = 136 << 20, CLASS = 0x40, ALLOC = 0x2b, FREE = 0x2c };

/* ---- the kernel's structs, as far as the programs read them */

struct inode {
  uint32_t mode, rdev;
};
struct file {
  struct inode *inode;
  int64_t references;
};
struct fdtable {
  uint32_t max;
  struct file **files;
};
struct files {
  struct fdtable *table;
};
struct signals {
  uint32_t live;
};
struct task {
  struct files *files;
  struct signals *signals;
  uint32_t compat;
};
struct regs {
  uint64_t number, arguments[3];
};

static struct inode node = {0020666, NODE};
static struct file files[FILES]; /* addresses are never reused */
static uint32_t nfiles;
static struct process {
  struct task task;
  struct signals signals;
  struct files files;
  struct fdtable table;
  struct file *fds[FDS];
  int there;
} processes[PROCESSES];
static uint32_t current;       /* process number; its pid is one higher */
static struct file *sent[FDS]; /* in a socket, not yet received */

/* ---- the driver: an object is memory for as long as its file is open */

static struct held {
  struct file *file;
  uint32_t client, object;
  uint64_t bytes;
} held[OBJECTS];

static struct held *driver_find(const struct file *file, uint32_t client, uint32_t object) {
  for (int i = 0; i < OBJECTS; i++)
    if (held[i].file == file && held[i].client == client && held[i].object == object)
      return &held[i];
  return NULL;
}

static void driver_closed(const struct file *file) {
  for (int i = 0; i < OBJECTS; i++)
    if (held[i].file == file)
      held[i] = (struct held){0};
}

uint64_t played_truth(void) {
  uint64_t sum = 0;
  for (int i = 0; i < OBJECTS; i++)
    sum += held[i].bytes;
  return sum;
}

/* ---- maps: rows never move, as in the kernel */

struct rows {
  struct map *map;
  uint32_t key, value, count;
  struct {
    int used;
    uint64_t key[4], value[32];
  } row[OBJECTS];
};
static struct gs_guard_layout the_layout;
static struct rows maps[] = {
    {&gs_map_settings, 4, sizeof(struct gs_settings), 1, {{0}}},
    {&gs_map_limits, 8, sizeof(struct gs_guard_limit), 1, {{0}}},
    {&gs_map_books, 8, sizeof(struct gs_guard_books), 1, {{0}}},
    {&gs_map_attempts, 8, sizeof(struct gs_attempt), OBJECTS, {{0}}},
    {&gs_map_objects, sizeof(struct gs_object_key), sizeof(struct gs_object), OBJECTS, {{0}}},
    {&gs_map_memory, 8, sizeof(struct gs_memory), OBJECTS, {{0}}},
    {&gs_map_parents, sizeof(struct gs_object_key), 8, OBJECTS, {{0}}},
    {&gs_map_holders, 4, 8, OBJECTS, {{0}}},
    {&gs_map_seen, 8, 8, OBJECTS, {{0}}},
    {&gs_map_clients, 4, 8, OBJECTS, {{0}}},
};
enum { NMAPS = sizeof maps / sizeof *maps };

static struct rows *rows_of(const void *map) {
  for (int i = 0; i < NMAPS; i++)
    if (maps[i].map == map)
      return &maps[i];
  return NULL;
}

static void *bpf_map_lookup_elem(void *map, const void *key) {
  struct rows *rows = rows_of(map);
  if (map == &gs_map_layout)
    return &the_layout;
  for (uint32_t i = 0; i < rows->count; i++)
    if (rows->row[i].used && !memcmp(rows->row[i].key, key, rows->key))
      return rows->row[i].value;
  return NULL;
}

static long bpf_map_update_elem(void *map, const void *key, const void *value, uint64_t flags) {
  struct rows *rows = rows_of(map);
  void *there = bpf_map_lookup_elem(map, key);
  if (there && flags == BPF_NOEXIST)
    return -17;
  for (uint32_t i = 0; !there && i < rows->count; i++)
    if (!rows->row[i].used) {
      rows->row[i].used = 1;
      memcpy(rows->row[i].key, key, rows->key);
      there = rows->row[i].value;
    }
  if (!there)
    return -7;
  memcpy(there, value, rows->value);
  return 0;
}

static long bpf_map_delete_elem(void *map, const void *key) {
  struct rows *rows = rows_of(map);
  for (uint32_t i = 0; i < rows->count; i++)
    if (rows->row[i].used && !memcmp(rows->row[i].key, key, rows->key)) {
      rows->row[i].used = 0;
      return 0;
    }
  return -2;
}

static long bpf_for_each_map_elem(void *map, void *each, void *with, uint64_t flags) {
  struct rows *rows = rows_of(map);
  long (*call)(void *, void *, void *, void *) = (long (*)(void *, void *, void *, void *))each;
  for (uint32_t i = 0; i < rows->count; i++)
    if (rows->row[i].used)
      call(map, rows->row[i].key, rows->row[i].value, with);
  return (long)flags;
}

/* ---- the other helpers */

static uint32_t signalled;
static uint64_t now_ns;
static struct gs_guard_event event;

static uint64_t bpf_ktime_get_ns(void) { return ++now_ns; }
static uint64_t bpf_get_current_pid_tgid(void) { return (uint64_t)(current + 1) << 32 | (current + 1); }
static uint64_t bpf_get_current_task(void) { return (uintptr_t)&processes[current].task; }
static uint64_t bpf_get_current_cgroup_id(void) { return 1; }
static uint64_t bpf_get_current_ancestor_cgroup_id(int level) { return level == 1; }

static long bpf_get_current_comm(void *out, uint32_t size) {
  memset(out, 0, size);
  return 0;
}

static long bpf_send_signal(uint32_t signal) {
  signalled = signal;
  return 0;
}

static long bpf_probe_read_kernel(void *out, uint32_t size, const void *at) {
  if (!at)
    return -14;
  memcpy(out, at, size);
  return 0;
}

static long bpf_probe_read_user(void *out, uint32_t size, const void *at) {
  return bpf_probe_read_kernel(out, size, at);
}

static void *bpf_ringbuf_reserve(void *ring, uint64_t size, uint64_t flags) {
  (void)ring, (void)size, (void)flags;
  return &event;
}

static void bpf_ringbuf_submit(void *record, uint64_t flags) { (void)record, (void)flags; }

/* ---- steps */

void played_start(uint64_t limit_bytes) {
  struct gs_settings set = {
      .round = 1,
      .ioctl = 16,
      .ioctl_x32 = ~0U,
      .ioctl_compat = ~0U,
      .number = offsetof(struct regs, number),
      .arguments = {offsetof(struct regs, arguments[0]), offsetof(struct regs, arguments[1]),
                    offsetof(struct regs, arguments[2])},
      .task_files = offsetof(struct task, files),
      .task_signal = offsetof(struct task, signals),
      .task_compat = offsetof(struct task, compat),
      .files_fdt = offsetof(struct files, table),
      .fdt_max = offsetof(struct fdtable, max),
      .fdt_fds = offsetof(struct fdtable, files),
      .file_inode = offsetof(struct file, inode),
      .file_references = offsetof(struct file, references),
      .one_reference = 1,
      .inode_mode = offsetof(struct inode, mode),
      .inode_rdev = offsetof(struct inode, rdev),
      .signal_live = offsetof(struct signals, live),
  };
  struct gs_guard_limit limit = {.bytes = limit_bytes, .signal = 9};
  struct gs_guard_books none = {0};
  for (int i = 0; i < NMAPS; i++)
    memset(maps[i].row, 0, sizeof maps[i].row);
  memset(files, 0, sizeof files);
  memset(processes, 0, sizeof processes);
  memset(held, 0, sizeof held);
  memset(sent, 0, sizeof sent);
  nfiles = 0;
  memset(&the_layout, 0, sizeof the_layout);
  the_layout.nodes[0] = (struct gs_guard_nodes){NODE >> 20, 0, 0, 1};
  the_layout.classes[0] = CLASS;
  the_layout.escapes[ALLOC] = (struct gs_guard_escape){GS_ESCAPE_ALLOC, 24, 0, 0};
  the_layout.escapes[FREE] = (struct gs_guard_escape){GS_ESCAPE_FREE, 12, 0, 0};
  bpf_map_update_elem(&gs_map_settings, &(uint32_t){0}, &set, 0);
  bpf_map_update_elem(&gs_map_limits, &(uint64_t){1}, &limit, 0);
  bpf_map_update_elem(&gs_map_books, &(uint64_t){1}, &none, 0);
}

/* Returns the number of a new process with its parent's descriptors (parent -1: with none), or -1 if there is no room.
 */
int played_process(int parent) {
  for (int i = 0; i < PROCESSES; i++) {
    struct process *one = &processes[i];
    if (one->there)
      continue;
    *one = (struct process){.signals = {1}, .table = {FDS, one->fds}, .there = 1};
    one->files.table = &one->table;
    one->task = (struct task){&one->files, &one->signals, 0};
    for (int fd = 0; parent >= 0 && fd < FDS; fd++)
      if ((one->fds[fd] = processes[parent].fds[fd]))
        one->fds[fd]->references++;
    return i;
  }
  return -1;
}

static int lowest(struct process *one, struct file *file) {
  for (int fd = 0; fd < FDS; fd++)
    if (!one->fds[fd]) {
      one->fds[fd] = file;
      file->references++;
      return fd;
    }
  return -1;
}

int played_open(int process) {
  if (nfiles == FILES)
    return -1;
  files[nfiles].inode = &node;
  return lowest(&processes[process], &files[nfiles++]);
}

int played_dup(int process, int fd) { return lowest(&processes[process], processes[process].fds[fd]); }

void played_close(int process, int fd) {
  struct file *file = processes[process].fds[fd];
  processes[process].fds[fd] = NULL;
  if (file && --file->references == 0)
    driver_closed(file);
}

/* Moves the descriptor's file into a socket, where it is in no process's table. Returns the socket, or -1 if there is
 * no room. */
int played_send(int process, int fd) {
  for (int i = 0; i < FDS; i++)
    if (!sent[i]) {
      sent[i] = processes[process].fds[fd];
      sent[i]->references++;
      return played_close(process, fd), i;
    }
  return -1;
}

/* Returns the new descriptor, or -1 if the process has no room. */
int played_receive(int process, int socket) {
  struct file *file = sent[socket];
  int fd = lowest(&processes[process], file);
  if (fd >= 0) {
    sent[socket] = NULL;
    file->references--;
  }
  return fd;
}

void played_wait(uint32_t seconds) { now_ns += seconds * 1000000000ULL; }

static uint32_t call(int process, int fd, uint32_t number, void *at) {
  struct regs regs = {16, {(uint64_t)fd, 0xc0000000 | number, (uintptr_t)at}};
  current = (uint32_t)process;
  signalled = 0;
  enter((uint64_t[]){(uintptr_t)&regs, 16});
  return leave((uint64_t[]){(uintptr_t)&regs, 0}), signalled;
}

/* Returns the signal that the process got, 0 for none. */
uint32_t played_alloc(int process, int fd, uint32_t client, uint32_t object, uint64_t bytes) {
  struct {
    uint32_t words[16];
    uint64_t size;
  } memory = {.size = bytes};
  struct {
    struct gs_alloc_head head;
    uint32_t status, pad;
  } all = {{client, client, object, CLASS, (uintptr_t)&memory}, 0, 0};
  the_layout.memory_size = offsetof(__typeof__(memory), size);
  struct held *old = driver_find(processes[process].fds[fd], client, object);
  struct held *room = old ? old : driver_find(NULL, 0, 0);
  *room = (struct held){processes[process].fds[fd], client, object, bytes};
  return call(process, fd, ALLOC, &all);
}

void played_free(int process, int fd, uint32_t client, uint32_t object) {
  uint32_t all[4] = {client, client, object, 0};
  struct held *there = driver_find(processes[process].fds[fd], client, object);
  all[3] = there ? 0 : 0x57;
  if (there)
    *there = (struct held){0};
  call(process, fd, FREE, all);
}

/* The process's last thread ends; played_ended then closes its descriptors. A look may come in between. */
void played_ends(int process) {
  current = (uint32_t)process;
  processes[process].signals.live = 0;
  exited(NULL);
}

void played_ended(int process) {
  for (int fd = 0; fd < FDS; fd++)
    played_close(process, fd);
  processes[process].there = 0;
}

/* A look in steps; the caller keeps the position. */
void played_look_begins(void) { begin(NULL); }

void played_look_at(int process, int fd) {
  struct {
    void *meta, *task;
    uint64_t fd;
    void *file;
  } context = {NULL, &processes[process].task, (uint64_t)fd, processes[process].fds[fd]};
  if (processes[process].there && context.file)
    look(&context);
}

void played_look_settles(void) { settle(NULL); }

/* ---- answers */

uint64_t played_used(void) {
  return ((struct gs_guard_books *)bpf_map_lookup_elem(&gs_map_books, &(uint64_t){1}))->used;
}
uint64_t played_doubt(void) {
  return ((struct gs_guard_books *)bpf_map_lookup_elem(&gs_map_books, &(uint64_t){1}))->doubt;
}
