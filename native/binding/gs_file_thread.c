#include "binding/gs_file_thread.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

struct job {
  struct job *next;
  const struct gs_step *steps;
  uint32_t count;
  uint64_t number; /* from 1; set when done */
  struct gs_err err;
  char directory[];
};

/* First in, first out. */
struct line {
  struct job *first, **last;
};

struct gs_file_thread {
  int bell;
  pthread_t thread;
  pthread_mutex_t lock; /* protects what follows */
  pthread_cond_t more, less;
  struct line waiting, failed;
  uint64_t done;
  uint32_t waits; /* callers of gs_file_thread_wait */
  bool stopping;
};

static void append(struct line *line, struct job *one) {
  one->next = NULL;
  *line->last = one;
  line->last = &one->next;
}

static struct job *first(struct line *line) {
  struct job *one = line->first;
  if (one && !(line->first = one->next))
    line->last = &line->first;
  return one;
}

static void *serve(void *argument) {
  struct gs_file_thread *t = argument;
  const uint64_t ring = 1;
  prctl(PR_SET_NAME, "gs-files");
  pthread_mutex_lock(&t->lock);
  for (;;) {
    struct job *one = first(&t->waiting);
    if (!one) {
      if (t->stopping)
        break;
      pthread_cond_wait(&t->more, &t->lock);
      continue;
    }
    pthread_mutex_unlock(&t->lock);
    bool well = gs_files_change(one->directory, one->steps, one->count, &one->err) == 0;
    pthread_mutex_lock(&t->lock);
    one->number = ++t->done;
    if (well)
      free(one);
    else
      append(&t->failed, one);
    if (t->waits > 0)
      pthread_cond_broadcast(&t->less);
    /* A full eventfd has rung already. */
    ssize_t written = write(t->bell, &ring, sizeof ring);
    (void)written;
  }
  pthread_mutex_unlock(&t->lock);
  return NULL;
}

int gs_file_thread_start(int bell, struct gs_file_thread **out, struct gs_err *err) {
  struct gs_file_thread *t = calloc(1, sizeof *t);
  if (!t)
    return gs_fail(err, -ENOMEM, "no memory for a thread that makes files");
  t->bell = bell;
  t->waiting.last = &t->waiting.first;
  t->failed.last = &t->failed.first;
  pthread_mutex_init(&t->lock, NULL);
  pthread_cond_init(&t->more, NULL);
  pthread_cond_init(&t->less, NULL);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int rc = pthread_create(&t->thread, NULL, serve, t);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (rc) {
    gs_file_thread_free(t);
    return gs_fail(err, -rc, "cannot start the thread that makes files: %s", strerror(rc));
  }
  *out = t;
  return 0;
}

int gs_file_thread_put(struct gs_file_thread *thread, const char *directory, const struct gs_step *steps,
                       uint32_t count, struct gs_err *err) {
  size_t bytes = strlen(directory) + 1;
  if (bytes > PATH_MAX)
    return gs_fail(err, -ENAMETOOLONG, "a name of %zu bytes is too long", bytes);
  struct job *one = malloc(sizeof *one + bytes);
  if (!one)
    return gs_fail(err, -ENOMEM, "no memory for the name of a directory");
  one->steps = steps;
  one->count = count;
  memcpy(one->directory, directory, bytes);
  pthread_mutex_lock(&thread->lock);
  append(&thread->waiting, one);
  pthread_cond_signal(&thread->more);
  pthread_mutex_unlock(&thread->lock);
  return 0;
}

uint64_t gs_file_thread_done(struct gs_file_thread *thread) {
  pthread_mutex_lock(&thread->lock);
  uint64_t done = thread->done;
  pthread_mutex_unlock(&thread->lock);
  return done;
}

void gs_file_thread_wait(struct gs_file_thread *thread, uint64_t count) {
  pthread_mutex_lock(&thread->lock);
  thread->waits++;
  while (thread->done < count)
    pthread_cond_wait(&thread->less, &thread->lock);
  thread->waits--;
  pthread_mutex_unlock(&thread->lock);
}

int gs_file_thread_failed(struct gs_file_thread *thread, uint64_t *number, struct gs_err *err) {
  pthread_mutex_lock(&thread->lock);
  struct job *one = first(&thread->failed);
  pthread_mutex_unlock(&thread->lock);
  if (!one)
    return 0;
  *number = one->number;
  *err = one->err;
  free(one);
  return 1;
}

void gs_file_thread_stop(struct gs_file_thread *thread) {
  pthread_mutex_lock(&thread->lock);
  thread->stopping = true;
  pthread_cond_signal(&thread->more);
  pthread_mutex_unlock(&thread->lock);
  pthread_join(thread->thread, NULL);
}

void gs_file_thread_free(struct gs_file_thread *thread) {
  struct job *one;
  while ((one = first(&thread->failed)))
    free(one);
  pthread_cond_destroy(&thread->more);
  pthread_cond_destroy(&thread->less);
  pthread_mutex_destroy(&thread->lock);
  free(thread);
}
