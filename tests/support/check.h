/* For test programs that check themselves: a failed check is reported and ends the program with status 1. */
#ifndef GS_TEST_CHECK_H
#define GS_TEST_CHECK_H

#include <stdio.h>
#include <stdlib.h>

#define CHECK(cond) \
  do { \
    if (!(cond)) { \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond); \
      exit(1); \
    } \
  } while (0)

#endif
