/* This process as a client of the engine: its devices, and its memory in the engine's accounts. */
#ifndef SIM_PROCESS_H
#define SIM_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "sim_api.h" /* generated from native/api/driver.tsv: prototypes of every exported function and types */
#include "sim/wire/wire.h"

/* The lock of the model. Lock order: sim_lock, then the locks in memory/, then the socket's lock. */
void sim_lock(void);
void sim_unlock(void);

/* Where the lane is named in which calls in progress are counted, and which knows whether the process is locked for a
 * checkpoint. NULL, there or here: it has used no device yet. A child, of whatever kind of fork, finds NULL there. */
extern struct sim_lane **sim_gate;
uint64_t sim_now(void);  /* CLOCK_MONOTONIC of the host, ns */
int64_t sim_ahead(void); /* how far this process's own is ahead of it, ns */
void sim_spin(uint64_t ns);
void sim_spend(uint64_t ns); /* the same for calls that may take long: most of the time it sleeps */
static inline void sim_pause(void) {
#ifdef __x86_64__
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}
const struct sim_hello *sim_info(void); /* valid after cuInit */

/* CUDA_SUCCESS after a successful cuInit in this process; NOT_INITIALIZED if cuInit was not called, or in a forked
 * child. */
CUresult sim_ready(void);
bool sim_device_valid(CUdevice device);
/* the engine's device number; CUDA_VISIBLE_DEVICES may hide and reorder devices */
uint32_t sim_engine_device(CUdevice device);

/* The engine's accounts of device memory: exact bytes, CUDA_ERROR_OUT_OF_MEMORY if the device is full. The caller
 * rounds. May be called with any lock held. */
CUresult sim_memory_reserve(CUdevice device, uint64_t bytes);
void sim_memory_release(CUdevice device, uint64_t bytes);
CUresult sim_memory_info(CUdevice device, uint64_t *free_bytes, uint64_t *total_bytes);
/* One request to the engine, with a descriptor to send along (-1: none) and one to receive (fd NULL: none). 0 or a
 * negative errno. May be called with any lock held. */
int sim_exchange(uint32_t op, uint32_t engine_device, uint64_t a, uint64_t b, int give, struct sim_reply *reply,
                 int *fd);
/* sim_file_put stores the file behind this process's memory on a device with the engine, under a secret. sim_file_get
 * retrieves the file of another process; engine_device is the engine's number. 0 or a negative errno. */
int sim_file_put(CUdevice device, uint32_t op, const uint64_t secret[2], int fd); /* SIM_FILE_PUT or SIM_EVENTS_PUT */
int sim_file_get(const uint64_t secret[2], int *fd, uint32_t *engine_device, int *pid);

#endif
