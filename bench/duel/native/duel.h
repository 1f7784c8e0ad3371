/* What all evasions share. Each one is a function that submits work for ever; the benchmark ends it by SIGKILL. */
#ifndef DUEL_H
#define DUEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sim_api.h"

enum { US = 1000, MS = 1000000, MIB = 1 << 20 };

/* `about`: what it tries, for the table. `devices`: how many its grant has, each with an honest tenant; 0 means 1.
 * `grants`: the share split into so many grants with a process each; 0 means 1. `open`: why it may win, where by SECURITY.md
 * nothing holds it; NULL for all others. `options`: further ones of `gpushare run`, as
 * `class=interactive`. `bare`: it calls `start` itself. `seconds`:
 * how long it is watched at least, where its work comes in lumps that a short look would count in or out. `found`: only
 * the daemon's findings hold it: what counts as its share begins when it is found. */
struct evasion {
  const char *name, *about;
  void (*run)(void);
  int devices, grants, seconds;
  const char *open, *options;
  bool bare, found;
};

/* Of the kinds of evasions; each list ends with an entry without a name. */
extern const struct evasion own_evasions[], uneven_evasions[], stream_evasions[], capture_evasions[], graph_evasions[],
    callback_evasions[], order_evasions[], function_evasions[], copy_evasions[], process_evasions[], grant_evasions[],
    guest_evasions[], memory_evasions[];

/* The primary context of the first device, current in the first thread, and a spinning kernel in it. */
struct duel {
  CUcontext context;
  CUfunction spin;
};
extern struct duel duel;

/* A program with kernels that take the nanoseconds of their one argument, `spin_ns` and `_Z7spin_ns0` to 63, and one
 * that counts a condition down, `count_conditional`. */
const char *program(void);
CUfunction spin_of(CUmodule module, const char *name);

/* Sets up this process; `device`: the index. For a child, or when called again after an `execve`. */
void start(int device);
/* Says that the evasion is set up: the measurement begins. */
void begin(void);

void spin(CUstream stream, uint64_t ns);
void spin_as(CUfunction function, CUstream stream, uint64_t ns);
CUstream new_stream(void);
/* Waits for everything in the current context. */
void wait_all(void);
/* Keeps up to `depth` launches of `ns` each queued, for ever, waiting by events of its own. */
void flood(CUfunction function, CUstream stream, uint64_t ns, unsigned depth);

/* Grows the heap, so that the C library can allocate although the address space cannot grow any more. */
void grow_heap(void);
/* Its bytes that are in use. */
uint64_t address_space(void);

uint64_t now_ns(void);
void sleep_ns(uint64_t ns);
void thread(void *(*run)(void *), void *argument);
/* Prints the call and ends the program with status 1. */
void must_at(CUresult code, const char *call);
#define MUST(call) must_at(call, #call)

#endif
