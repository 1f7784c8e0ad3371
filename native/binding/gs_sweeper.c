#include "binding/gs_sweeper.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

struct swept {
  struct swept *next;
  char directory[];
};

/* First in, first out. */
struct line {
  struct swept *first, **last;
};

struct gs_sweeper {
  const struct gs_step *steps;
  uint32_t count;
  int bell;
  pthread_t thread;
  pthread_mutex_t lock; /* of what follows */
  pthread_cond_t more;
  struct line waiting, failed;
  uint64_t done;
  bool stopping;
};

static void append(struct line *line, struct swept *one) {
  one->next = NULL;
  *line->last = one;
  line->last = &one->next;
}

static struct swept *first(struct line *line) {
  struct swept *one = line->first;
  if (one && !(line->first = one->next))
    line->last = &line->first;
  return one;
}

static void *sweep(void *argument) {
  struct gs_sweeper *s = argument;
  const uint64_t ring = 1;
  prctl(PR_SET_NAME, "gs-sweeper");
  pthread_mutex_lock(&s->lock);
  for (;;) {
    struct swept *one = first(&s->waiting);
    if (!one) {
      if (s->stopping)
        break;
      pthread_cond_wait(&s->more, &s->lock);
      continue;
    }
    pthread_mutex_unlock(&s->lock);
    struct gs_err ignored;
    bool well = gs_files_change(one->directory, s->steps, s->count, &ignored) == 0;
    if (well)
      free(one);
    pthread_mutex_lock(&s->lock);
    if (!well)
      append(&s->failed, one);
    s->done++;
    /* A full eventfd has rung already. */
    ssize_t written = write(s->bell, &ring, sizeof ring);
    (void)written;
  }
  pthread_mutex_unlock(&s->lock);
  return NULL;
}

int gs_sweeper_start(const struct gs_step *steps, uint32_t count, int bell, struct gs_sweeper **out,
                     struct gs_err *err) {
  struct gs_sweeper *s = calloc(1, sizeof *s);
  if (!s)
    return gs_fail(err, -ENOMEM, "no memory for what removes directories");
  s->steps = steps;
  s->count = count;
  s->bell = bell;
  s->waiting.last = &s->waiting.first;
  s->failed.last = &s->failed.first;
  pthread_mutex_init(&s->lock, NULL);
  pthread_cond_init(&s->more, NULL);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int rc = pthread_create(&s->thread, NULL, sweep, s);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (rc) {
    gs_sweeper_free(s);
    return gs_fail(err, -rc, "cannot start the thread that removes directories: %s", strerror(rc));
  }
  *out = s;
  return 0;
}

int gs_sweeper_put(struct gs_sweeper *sweeper, const char *directory, struct gs_err *err) {
  size_t bytes = strlen(directory) + 1;
  if (bytes > PATH_MAX)
    return gs_fail(err, -ENAMETOOLONG, "a name of %zu bytes is too long", bytes);
  struct swept *one = malloc(sizeof *one + bytes);
  if (!one)
    return gs_fail(err, -ENOMEM, "no memory for the name of a directory");
  memcpy(one->directory, directory, bytes);
  pthread_mutex_lock(&sweeper->lock);
  append(&sweeper->waiting, one);
  pthread_cond_signal(&sweeper->more);
  pthread_mutex_unlock(&sweeper->lock);
  return 0;
}

uint64_t gs_sweeper_done(struct gs_sweeper *sweeper) {
  pthread_mutex_lock(&sweeper->lock);
  uint64_t done = sweeper->done;
  pthread_mutex_unlock(&sweeper->lock);
  return done;
}

int gs_sweeper_failed(struct gs_sweeper *sweeper, char *out, uint64_t size) {
  pthread_mutex_lock(&sweeper->lock);
  struct swept *one = first(&sweeper->failed);
  pthread_mutex_unlock(&sweeper->lock);
  if (!one)
    return 0;
  strncpy(out, one->directory, size);
  free(one);
  return 1;
}

void gs_sweeper_stop(struct gs_sweeper *sweeper) {
  pthread_mutex_lock(&sweeper->lock);
  sweeper->stopping = true;
  pthread_cond_signal(&sweeper->more);
  pthread_mutex_unlock(&sweeper->lock);
  pthread_join(sweeper->thread, NULL);
}

void gs_sweeper_free(struct gs_sweeper *sweeper) {
  struct swept *one;
  while ((one = first(&sweeper->failed)))
    free(one);
  pthread_cond_destroy(&sweeper->more);
  pthread_mutex_destroy(&sweeper->lock);
  free(sweeper);
}
