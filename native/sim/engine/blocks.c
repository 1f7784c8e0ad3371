/* Memory that more than one holder can keep: exported by a process, or shared by an IPC handle.
 *
 * A block exists as long as a process holds it or a descriptor refers to it, wherever that descriptor is: open in a
 * process that does not use the device, or in flight through a socket. Each exported descriptor is the writing end of
 * the block's pipe. The engine keeps the reading end: when the pipe has no writer, no descriptor is left. This is
 * checked before each request is answered, so that the accounts are exact whenever they can be seen.
 *
 * The bytes are charged once: to the process that created the memory while it lives, then to the process that has held
 * the block for longest, then, while only a descriptor keeps it, to nobody. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sim/engine/engine.h"

struct hold {
  struct process *process;
  unsigned count;
  struct hold *next; /* oldest first */
};

struct block {
  uint64_t id, key, bytes;
  uint32_t device;
  struct process *creator; /* NULL once it has ended */
  struct process *charged; /* NULL: nobody; in the device's unowned bytes */
  int file;                /* the memory, for those who import it; -1: none */
  int pipe;                /* reading end; -1: never exported */
  struct hold *holds;
  struct block *next;
};

static struct block *blocks;
static unsigned unheld; /* blocks that only descriptors keep */
static uint64_t ids;

static struct block *block_of(uint64_t id) {
  for (struct block *block = blocks; block; block = block->next)
    if (block->id == id)
      return block;
  return NULL;
}

/* The link that refers to the process's hold; *it is NULL if there is none. */
static struct hold **hold_of(struct block *block, const struct process *process) {
  struct hold **at = &block->holds;
  while (*at && (*at)->process != process)
    at = &(*at)->next;
  return at;
}

static void uncharge(struct engine *engine, struct block *block) {
  if (block->charged)
    block->charged->share[block->device].bytes -= block->bytes;
  else
    engine->device[block->device].unowned -= block->bytes;
}

static void charge(struct engine *engine, struct block *block, struct process *process) {
  block->charged = process;
  if (process == NULL) {
    engine->device[block->device].unowned += block->bytes;
    return;
  }
  struct share *share = &process->share[block->device];
  share->bytes += block->bytes;
  if (share->bytes > share->peak_bytes)
    share->peak_bytes = share->bytes;
}

static void block_end(struct engine *engine, struct block **at) {
  struct block *block = *at;
  *at = block->next;
  uncharge(engine, block);
  engine->device[block->device].used -= block->bytes;
  if (block->file >= 0)
    close(block->file);
  if (block->pipe >= 0)
    close(block->pipe);
  free(block);
}

static bool exported(const struct block *block) {
  struct pollfd pipe = {.fd = block->pipe};
  return block->pipe >= 0 && (poll(&pipe, 1, 0) <= 0 || !(pipe.revents & (POLLHUP | POLLERR)));
}

/* The block has lost its last hold: it ends unless a descriptor keeps it. */
static void block_let_go(struct engine *engine, struct block *block) {
  struct block **at = &blocks;
  while (*at != block)
    at = &(*at)->next;
  if (exported(block))
    unheld++;
  else
    block_end(engine, at);
}

void blocks_settle(struct engine *engine) {
  for (struct block **at = &blocks; *at && unheld > 0;) {
    if ((*at)->holds || exported(*at)) {
      at = &(*at)->next;
    } else {
      unheld--;
      block_end(engine, at);
    }
  }
}

static int hold(struct engine *engine, struct block *block, struct process *process) {
  struct hold **at = hold_of(block, process);
  if (*at) {
    (*at)->count++;
    return 0;
  }
  struct hold *made = calloc(1, sizeof *made);
  if (made == NULL)
    return -ENOMEM;
  if (block->holds == NULL && block->pipe >= 0)
    unheld--;
  *made = (struct hold){.process = process, .count = 1};
  *at = made;
  if (block->charged == NULL) {
    uncharge(engine, block);
    charge(engine, block, process);
  }
  return 0;
}

int block_make(struct engine *engine, struct process *process, const struct sim_request *request, int file,
               struct sim_reply *reply) {
  uint64_t key;
  struct block *made = NULL;
  if (request->a > process->share[request->device].bytes || getrandom(&key, sizeof key, 0) != sizeof key)
    return -EINVAL;
  made = malloc(sizeof *made);
  if (made == NULL)
    return -ENOMEM;
  *made = (struct block){.id = ids + 1,
                         .key = key,
                         .bytes = request->a,
                         .device = request->device,
                         .creator = process,
                         .charged = process,
                         .file = file,
                         .pipe = -1};
  int error = hold(engine, made, process);
  if (error) {
    free(made);
    return error;
  }
  made->next = blocks;
  blocks = made;
  reply->a = made->id = ++ids;
  reply->b = key;
  return 0;
}

int block_hold(struct engine *engine, struct process *process, uint64_t id, uint64_t key) {
  struct block *block = block_of(id);
  if (block == NULL || block->key != key ||
      !(*hold_of(block, process) || (block->creator && *hold_of(block, block->creator))))
    return -ENOENT;
  return hold(engine, block, process);
}

int block_drop(struct engine *engine, struct process *process, uint64_t id, uint64_t *left) {
  struct block *block = block_of(id);
  struct hold **at = block ? hold_of(block, process) : NULL;
  if (at == NULL || *at == NULL)
    return -ENOENT;
  *left = 1;
  if (--(*at)->count > 0)
    return 0;
  struct hold *gone = *at;
  *at = gone->next;
  free(gone);
  if (block->holds)
    return 0;
  block_let_go(engine, block);
  *left = block_of(id) != NULL;
  return 0;
}

int block_export(const struct process *process, uint64_t id) {
  struct block *block = block_of(id);
  if (block == NULL || *hold_of(block, process) == NULL)
    return -ENOENT;
  int ends[2];
  if (block->pipe < 0) {
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0)
      return -errno;
    block->pipe = ends[0];
    return ends[1];
  }
  char path[32];
  snprintf(path, sizeof path, "/proc/self/fd/%d", block->pipe);
  int again = open(path, O_WRONLY | O_CLOEXEC | O_NONBLOCK);
  return again < 0 ? -errno : again;
}

static bool same_pipe(int one, int other) {
  struct stat here, there;
  return fstat(one, &here) == 0 && fstat(other, &there) == 0 && here.st_ino == there.st_ino &&
         here.st_dev == there.st_dev;
}

int block_import(struct engine *engine, struct process *process, int given, struct sim_reply *reply) {
  for (struct block *block = blocks; block; block = block->next) {
    if (block->pipe < 0 || !same_pipe(block->pipe, given))
      continue;
    int error = hold(engine, block, process);
    reply->a = block->id;
    reply->b = block->key;
    return error ? error : block->file;
  }
  return -ENOENT;
}

void blocks_sums(const struct process *process, uint32_t device, struct sim_reply *reply) {
  for (struct block *block = blocks; block; block = block->next) {
    const struct hold *held = *hold_of(block, process);
    if (block->device != device)
      continue;
    reply->a += block->charged == process ? block->bytes : 0;
    reply->b += held ? held->count : 0;
  }
}

void blocks_process_ended(struct engine *engine, const struct process *process) {
  for (struct block *block = blocks, *next; block; block = next) {
    next = block->next;
    struct hold **at = hold_of(block, process), *gone = *at;
    if (gone)
      *at = gone->next;
    free(gone);
    if (block->creator == process)
      block->creator = NULL;
    if (block->charged == process) {
      uncharge(engine, block);
      charge(engine, block, block->holds ? block->holds->process : NULL);
    }
    if (gone && block->holds == NULL)
      block_let_go(engine, block);
  }
}
