/* Under the sanitizers: directories that threads hand over while others are removed; what fails is told once; what is
 * left at the end is done. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "binding/gs_sweeper.h"
#include "../support/check.h"

enum { THREADS = 3, EACH = 300, FAILS = 10 /* every so many hold more than is removed */ };

static char top[] = "/tmp/gpushare-sweeper-XXXXXX";
static struct gs_sweeper *sweeper;

static void *hand_over(void *number) {
  struct gs_err err;
  char name[256];
  for (int i = 0; i < EACH; i++) {
    snprintf(name, sizeof name, "%s/%d-%d", top, *(int *)number, i);
    CHECK(mkdir(name, 0700) == 0);
    if (i % FAILS == 0) {
      strcat(name, "/more");
      CHECK(mkdir(name, 0700) == 0);
      *strrchr(name, '/') = 0;
    }
    CHECK(gs_sweeper_put(sweeper, name, &err) == 0);
  }
  return NULL;
}

static int told(void) {
  char name[4096], more[4200];
  int count = 0;
  while (gs_sweeper_failed(sweeper, name, sizeof name)) {
    snprintf(more, sizeof more, "%s/more", name);
    CHECK(rmdir(more) == 0 && rmdir(name) == 0);
    count++;
  }
  return count;
}

int main(void) {
  static const struct gs_step steps[] = {{.kind = GS_STEP_RMDIR, .path = "", .text = ""}};
  struct gs_err err;
  pthread_t threads[THREADS];
  int numbers[THREADS], count = 0, bell = eventfd(0, EFD_NONBLOCK);
  uint64_t done = 0;
  CHECK(mkdtemp(top));
  CHECK(gs_sweeper_start(steps, 1, bell, &sweeper, &err) == 0);
  for (int i = 0; i < THREADS; i++) {
    numbers[i] = i;
    CHECK(pthread_create(&threads[i], NULL, hand_over, &numbers[i]) == 0);
  }
  for (int i = 0; i < 50; i++) {
    count += told();
    CHECK(gs_sweeper_done(sweeper) >= done);
    done = gs_sweeper_done(sweeper);
  }
  for (int i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
  gs_sweeper_stop(sweeper);
  CHECK(gs_sweeper_done(sweeper) == THREADS * EACH);
  count += told();
  CHECK(count == THREADS * EACH / FAILS);
  CHECK(read(bell, &done, sizeof done) == sizeof done);
  gs_sweeper_free(sweeper);
  CHECK(rmdir(top) == 0);
  return 0;
}
