/* Lists of changes to files that belong together: one call from Python instead of one per system call, around each of
 * which it would release and retake the GIL. */
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
  GS_STEP_REPLACE = 3,   /* the same, in place of whatever is there: written to the file `text` first, then renamed */
  GS_STEP_SYMLINK = 4,   /* text: its target */
  GS_STEP_OWNER = 5,     /* uid, gid; (uint32_t)-1: unchanged */
  GS_STEP_UNMOUNT = 6,   /* all that is mounted there; fails if nothing is */
  GS_STEP_UNLINK = 7,
  GS_STEP_RMDIR = 8,
  GS_STEP_READABLE = 9 /* changes nothing; fails unless it is a regular file that all users may read */
};

/* Modes are set regardless of the umask. Only GS_STEP_TMPFS changes the target of a symlink at the end of its path. */
struct gs_step {
  uint32_t kind; /* enum gs_step_kind */
  uint32_t mode, uid, gid;
  const char *path; /* absolute, or relative to the directory of the call; empty: that directory */
  const char *text;
  const void *data;
  uint64_t bytes; /* of data */
  uint64_t size;  /* of the file, zeros behind the data; at least `bytes` */
  uint64_t room;  /* this many bytes are allocated at the start and at the end of the file */
};

/* Carries out the steps in order, up to the first that fails. What was done before that stays. */
int gs_files_change(const char *directory, const struct gs_step *steps, uint32_t count, struct gs_err *err);

#endif
