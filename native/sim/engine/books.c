/* Accounts of memory and device time per process. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sim/engine/engine.h"

struct process *books_process(struct engine *engine, pid_t pid, int pidfd) {
  for (struct process *process = engine->live; process; process = process->next)
    if (process->pid == pid) {
      if (pidfd >= 0)
        close(pidfd);
      return process;
    }
  struct process *process = calloc(1, sizeof *process);
  if (process == NULL)
    return NULL;
  process->pid = pid;
  process->pidfd = pidfd;
  process->alive = true;
  for (uint32_t i = 0; i < SIM_MAX_DEVICES; i++)
    process->share[i].file[0] = process->share[i].file[1] = -1;
  process->next = engine->live;
  engine->live = process;
  return process;
}

static void forget_oldest(struct engine *engine) {
  struct process **at = &engine->ended;
  while ((*at)->next)
    at = &(*at)->next;
  for (uint32_t i = 0; i < engine->options.hello.ndevices; i++)
    engine->device[i].forgotten_busy_ns += (*at)->share[i].busy_ns;
  free(*at);
  *at = NULL;
  engine->nended--;
}

void books_process_ended(struct engine *engine, struct process *process) {
  if (!process->alive)
    return;
  process->alive = false;
  blocks_process_ended(engine, process);
  for (uint32_t i = 0; i < engine->options.hello.ndevices; i++) {
    struct share *share = &process->share[i];
    if (share->lane)
      lane_close(engine, share->lane);
    engine->device[i].used -= share->bytes;
    share->bytes = 0;
    for (int k = 0; k < SHARED_FILES; k++) {
      if (share->file[k] >= 0)
        close(share->file[k]);
      share->file[k] = -1;
    }
  }
  if (process->pidfd >= 0)
    close(process->pidfd);
  process->pidfd = -1;
  struct process **at = &engine->live;
  while (*at != process)
    at = &(*at)->next;
  *at = process->next;
  process->next = engine->ended;
  engine->ended = process;
  if (++engine->nended > ENGINE_ENDED_KEPT)
    forget_oldest(engine);
}

int books_alloc(struct engine *engine, struct process *process, uint32_t index, uint64_t bytes) {
  struct device *device = &engine->device[index];
  struct share *share = &process->share[index];
  if (bytes > device->total - device->used || limits_room(engine, process, index, bytes) != 0)
    return -ENOMEM;
  device->used += bytes;
  share->bytes += bytes;
  if (device->used > device->peak)
    device->peak = device->used;
  if (share->bytes > share->peak_bytes)
    share->peak_bytes = share->bytes;
  return 0;
}

int books_free(struct engine *engine, struct process *process, uint32_t index, uint64_t bytes) {
  if (bytes > process->share[index].bytes)
    return -EINVAL;
  process->share[index].bytes -= bytes;
  engine->device[index].used -= bytes;
  return 0;
}

int books_file_put(struct process *process, uint32_t index, enum shared_file which, const uint64_t secret[2],
                   int file) {
  struct share *share = &process->share[index];
  if (share->file[which] >= 0)
    close(share->file[which]);
  share->file[which] = file;
  memcpy(share->secret[which], secret, sizeof share->secret[which]);
  return 0;
}

int books_file_get(const struct engine *engine, const uint64_t secret[2], uint64_t *device, uint64_t *pid) {
  for (const struct process *process = engine->live; process; process = process->next)
    for (uint32_t i = 0; i < engine->options.hello.ndevices * SHARED_FILES; i++) {
      const struct share *share = &process->share[i / SHARED_FILES];
      uint32_t which = i % SHARED_FILES;
      if (share->file[which] < 0 || memcmp(share->secret[which], secret, sizeof share->secret[which]) != 0)
        continue;
      *device = i / SHARED_FILES;
      *pid = (uint64_t)process->pid;
      return share->file[which];
    }
  return -ENOENT;
}

uint64_t books_process_busy(const struct process *process, uint32_t index, uint64_t now) {
  const struct share *share = &process->share[index];
  return share->busy_ns + (share->lane ? lane_busy(share->lane, now) : 0);
}

/* Device time as of the last report that was read, so that a sum and its parts agree even if a report arrives in
 * between. */
static uint64_t booked(const struct process *process, uint32_t index) {
  const struct share *share = &process->share[index];
  return share->busy_ns + (share->lane ? share->lane->busy_ns : 0);
}

uint64_t books_busy(struct engine *engine, uint32_t index, uint64_t now) {
  uint64_t sum = engine->device[index].forgotten_busy_ns;
  for (struct process *process = engine->live; process; process = process->next)
    sum += books_process_busy(process, index, now);
  for (struct process *process = engine->ended; process; process = process->next)
    sum += books_process_busy(process, index, now);
  return sum;
}

/* True if the process has ever had memory or a lane on the device, and so has a row. */
static bool used(const struct process *process, uint32_t index) {
  const struct share *share = &process->share[index];
  return share->peak_bytes > 0 || share->busy_ns > 0 || share->lane != NULL;
}

static uint64_t copied(const struct share *share, int direction) {
  uint64_t now = share->lane ? __atomic_load_n(&share->lane->page->copied[direction], __ATOMIC_RELAXED) : 0;
  return share->copied[direction] + now;
}

static void json_processes(FILE *out, const struct process *list, uint32_t index, const char **comma) {
  for (const struct process *process = list; process; process = process->next) {
    if (!used(process, index))
      continue;
    const struct share *share = &process->share[index];
    fprintf(out,
            "%s{\"pid\":%d,\"busy_ns\":%lu,\"bytes\":%lu,\"peak_bytes\":%lu,"
            "\"copied_in_bytes\":%lu,\"copied_out_bytes\":%lu,\"illegal_accesses\":%lu,\"alive\":%s}",
            *comma, (int)process->pid, booked(process, index), share->bytes, share->peak_bytes,
            copied(share, SIM_TO_DEVICE), copied(share, SIM_FROM_DEVICE), share->illegal,
            process->alive ? "true" : "false");
    *comma = ",";
  }
}

static void json_device(FILE *out, struct engine *engine, uint32_t index, uint64_t now) {
  const struct sim_device_info *info = &engine->options.hello.device[index];
  const struct device *device = &engine->device[index];
  const uint8_t *u = info->uuid;
  fprintf(out,
          "%s{\"uuid\":\"GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x\",\"name\":\"%s\","
          "\"total_bytes\":%lu,\"wall_ns\":%lu,\"busy_ns\":%lu,\"switches\":%lu,\"switch_ns\":%lu,\"bytes\":%lu,"
          "\"unowned_bytes\":%lu,\"peak_bytes\":%lu,"
          "\"processes\":[",
          index ? "," : "", u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13],
          u[14], u[15], info->name, device->total, now - engine->started, books_busy(engine, index, now),
          device->switches, device->switch_ns, device->used, device->unowned, device->peak);
  const char *comma = "";
  json_processes(out, engine->live, index, &comma);
  json_processes(out, engine->ended, index, &comma);
  fprintf(out, "]}");
}

int books_json(struct engine *engine, uint64_t *bytes) {
  int fd = memfd_create("gpushare-sim-stats", MFD_CLOEXEC);
  int copy = fd < 0 ? -1 : dup(fd);
  FILE *out = copy < 0 ? NULL : fdopen(copy, "w");
  if (out == NULL) {
    int error = -errno;
    if (copy >= 0)
      close(copy);
    if (fd >= 0)
      close(fd);
    return error;
  }
  uint64_t now = engine_now();
  fprintf(out, "{\"devices\":[");
  for (uint32_t i = 0; i < engine->options.hello.ndevices; i++)
    json_device(out, engine, i, now);
  fprintf(out, "]}");
  fflush(out);
  *bytes = (uint64_t)ftell(out);
  if (fclose(out) != 0) {
    close(fd);
    return -EIO;
  }
  return fd;
}

int books_processes(struct engine *engine, uint32_t index, bool ended, uint64_t *rows) {
  int fd = memfd_create("gpushare-sim-processes", MFD_CLOEXEC);
  if (fd < 0)
    return -errno;
  uint64_t now = engine_now();
  *rows = 0;
  const struct process *lists[] = {engine->live, engine->ended};
  for (int i = 0; i < (ended ? 2 : 1); i++)
    for (const struct process *process = lists[i]; process; process = process->next) {
      if (!used(process, index))
        continue;
      const struct share *share = &process->share[index];
      struct sim_process row = {process->pid, process->alive, books_process_busy(process, index, now), share->bytes,
                                share->peak_bytes};
      if (write(fd, &row, sizeof row) != sizeof row) {
        close(fd);
        return -ENOSPC;
      }
      ++*rows;
    }
  return fd;
}

int books_setting(struct engine *engine, const struct sim_request *request, uint64_t *value) {
  if (request->a >= SIM_SETTINGS)
    return -EINVAL;
  uint64_t *setting = &engine->device[request->device].setting[request->a];
  if (request->b != SIM_KEEP)
    *setting = request->b;
  *value = *setting;
  return 0;
}
