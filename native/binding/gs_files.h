/* Changes to files that belong together, as a list: one call from Python in place of one for each system call, before
 * which it would give its lock away, and take it back after. */
#ifndef GS_FILES_H
#define GS_FILES_H

#ifndef GS_CFFI
#include <stdint.h>
#include "page/gs_err.h"
#endif

enum gs_step_kind {
  GS_STEP_DIRECTORY = 0, /* mode */
  GS_STEP_TMPFS = 1,     /* mounted there; text: its options */
  GS_STEP_FILE = 2,      /* a new one; mode, data, size, room */
  GS_STEP_REPLACE = 3,   /* the same, whatever is there: written under the name in text first, and renamed */
  GS_STEP_SYMLINK = 4,   /* text: what it means */
  GS_STEP_OWNER = 5,     /* uid, gid; (uint32_t)-1: as it is */
  GS_STEP_UNMOUNT = 6,   /* whatever is mounted there; something has to be */
  GS_STEP_UNLINK = 7,
  GS_STEP_RMDIR = 8,
  GS_STEP_READABLE = 9 /* nothing changes: it has to be a file that all users may read */
};

/* Modes hold whatever the umask is. No step changes what a symlink at the end of its path
 * means. */
struct gs_step {
  uint32_t kind; /* enum gs_step_kind */
  uint32_t mode, uid, gid;
  const char *path; /* absolute, or below the directory of the call; empty: that itself */
  const char *text;
  const void *data;
  uint64_t bytes; /* of data */
  uint64_t size;  /* of the file, zeros behind the data; at least `bytes` */
  uint64_t room;  /* so many bytes of the file are allocated at once, at its start and at its end */
};

/* Carries out the steps in order, up to the first that fails. What was done before that stays. */
int gs_files_change(const char *directory, const struct gs_step *steps, uint32_t count, struct gs_err *err);

#endif
