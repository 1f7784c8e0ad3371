#include "interposer/os/thread.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>

/* musl, whose programs may load this library too, has one namespace and no such function. */
#pragma weak dlmopen

typedef __typeof__(pthread_create) create_fn;

/* A program that opens the driver with dlmopen has two copies of glibc: its own, and ours in the driver's namespace.
 * The loader allocates from the program's, on behalf of any thread (a library's thread-local variables, at first use),
 * and that copy takes no lock before its own pthread_create has been called: a thread created by our copy would corrupt
 * the program's heap. So the program's copy creates it. Before glibc 2.34 pthread_create is in libpthread, which the
 * program may lack: there our copy does. Within one namespace the linker's choice is used, which may be a
 * sanitizer's. */
static create_fn *program_create(void) {
  static create_fn *known;
  create_fn *create = __atomic_load_n(&known, __ATOMIC_RELAXED);
  if (create)
    return create;
  create = pthread_create;
  void *ours = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
  void *base = dlmopen ? dlmopen(LM_ID_BASE, "libc.so.6", RTLD_LAZY | RTLD_NOLOAD) : NULL;
  create_fn *found = base && base != ours ? (create_fn *)dlsym(base, "pthread_create") : NULL;
  if (found)
    create = found;
  else
    dlerror(); /* clears the error, which nobody reads */
  __atomic_store_n(&known, create, __ATOMIC_RELAXED);
  return create;
}

int gs_thread_start(void *(*run)(void *), void *argument) {
  create_fn *create = program_create();
  pthread_attr_t attributes;
  pthread_t thread;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  int failed = create(&thread, &attributes, run, argument);
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return failed;
}
