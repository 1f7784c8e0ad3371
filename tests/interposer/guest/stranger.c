/* A program that does not use CUDA, built for all kinds of libc and link modes. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *answer(void *unused) {
  (void)unused;
  return (void *)42;
}

int main(int argc, char **argv) {
  char *copies[3];
  pthread_t thread;
  void *result = NULL;
  int made = 0;
  for (int i = 0; i < 3; i++)
    made += (copies[i] = strdup(argv[argc - 1])) != NULL;
  pthread_create(&thread, NULL, answer, NULL);
  pthread_join(thread, &result);
  printf("%d arguments, %s, %d allocations, thread %ld\n", argc - 1, copies[0], made, (long)result);
  for (int i = 0; i < 3; i++)
    free(copies[i]);
  return 3;
}
