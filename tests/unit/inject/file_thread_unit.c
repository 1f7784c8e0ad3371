/* Run under the sanitizers: threads hand over directories while others are removed; a thread that waits for one finds
 * it removed; a failure is reported once, with its number; what is left at the end is done. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "binding/gs_file_thread.h"
#include "../../support/check.h"

enum { THREADS = 3, EACH = 300, FAILS = 10 /* every FAILS-th directory is not empty */ };

static char top[] = "/tmp/gpushare-files-XXXXXX";
static struct gs_file_thread *thread;
static const struct gs_step steps[] = {{.kind = GS_STEP_RMDIR, .path = "", .text = ""}};

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
    CHECK(gs_file_thread_put(thread, name, steps, 1, &err) == 0);
    if (i % 7 == 0) /* this thread alone has put that many */
      gs_file_thread_wait(thread, (uint64_t)i + 1);
  }
  return NULL;
}

static int told(uint64_t *latest) {
  struct gs_err err;
  uint64_t number;
  int count = 0;
  while (gs_file_thread_failed(thread, &number, &err)) {
    CHECK(err.code == -ENOTEMPTY && strstr(err.msg, top));
    CHECK(number > *latest && number <= gs_file_thread_done(thread));
    *latest = number;
    count++;
  }
  return count;
}

int main(void) {
  struct gs_err err;
  pthread_t threads[THREADS];
  char name[256];
  int numbers[THREADS], count = 0, bell = eventfd(0, EFD_NONBLOCK);
  uint64_t done = 0, latest = 0;
  CHECK(mkdtemp(top));
  CHECK(gs_file_thread_start(bell, &thread, &err) == 0);
  for (int i = 0; i < THREADS; i++) {
    numbers[i] = i;
    CHECK(pthread_create(&threads[i], NULL, hand_over, &numbers[i]) == 0);
  }
  for (int i = 0; i < 50; i++) {
    count += told(&latest);
    CHECK(gs_file_thread_done(thread) >= done);
    done = gs_file_thread_done(thread);
  }
  for (int i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
  gs_file_thread_wait(thread, THREADS * EACH - 1);
  gs_file_thread_stop(thread);
  CHECK(gs_file_thread_done(thread) == THREADS * EACH);
  count += told(&latest);
  CHECK(count == THREADS * EACH / FAILS);
  CHECK(read(bell, &done, sizeof done) == sizeof done);
  gs_file_thread_free(thread);
  for (int i = 0; i < THREADS; i++)
    for (int j = 0; j < EACH; j += FAILS) {
      snprintf(name, sizeof name, "%s/%d-%d/more", top, i, j);
      CHECK(rmdir(name) == 0);
      *strrchr(name, '/') = 0;
      CHECK(rmdir(name) == 0);
    }
  CHECK(rmdir(top) == 0);
  return 0;
}
