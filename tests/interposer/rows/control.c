/* Holds of the simulated driver (sim_test.h) on behalf of the test, which asks for them through the socket of
 * ROWS_CONTROL while the rows' thread may be in a call: "FUNCTION THREAD" stops the next call of that thread before its
 * effect, "held" answers whether it is stopped, "release" lets it go on. Each is answered with a byte, 1 or 0. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rows.h"

enum { BEFORE = 0, PATIENCE_MS = 20000 };

static struct {
  int (*hold)(const char *function, int when, int thread, unsigned skip);
  int (*held)(int hold, int timeout_ms);
  int (*release)(int hold);
} sim;

/* The driver itself, even if another library has its name. */
static void find_simulator(void) {
  char line[4096];
  FILE *maps = fopen("/proc/self/maps", "re");
  while (maps && !sim.hold && fgets(line, sizeof line, maps)) {
    char *path = strchr(line, '/');
    void *library = NULL;
    if (path && strstr(path, "libcuda")) {
      path[strcspn(path, "\n")] = 0;
      library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    }
    if (library) {
      *(void **)&sim.hold = dlsym(library, "gs_sim_hold");
      *(void **)&sim.held = dlsym(library, "gs_sim_held");
      *(void **)&sim.release = dlsym(library, "gs_sim_release");
    }
  }
  if (maps)
    fclose(maps);
}

static void *serve(void *socket) {
  char asked[128], function[64];
  int at = (int)(intptr_t)socket, hold = 0, thread;
  for (ssize_t got; (got = recv(at, asked, sizeof asked - 1, 0)) > 0;) {
    char done = 0;
    asked[got] = 0;
    if (!sim.hold)
      find_simulator();
    if (sim.hold && sscanf(asked, "%63s %d", function, &thread) == 2)
      done = (hold = sim.hold(function, BEFORE, thread, 0)) > 0;
    else if (sim.hold && strcmp(asked, "held") == 0)
      done = sim.held(hold, PATIENCE_MS) > 0;
    else if (sim.hold && strcmp(asked, "release") == 0)
      done = sim.release(hold) == 1;
    if (send(at, &done, 1, MSG_NOSIGNAL) != 1)
      break;
  }
  return NULL;
}

void control_start(void) {
  const char *number = getenv("ROWS_CONTROL");
  pthread_t thread;
  if (number && pthread_create(&thread, NULL, serve, (void *)(intptr_t)atoi(number)) == 0)
    pthread_detach(thread);
}
