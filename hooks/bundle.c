#define _GNU_SOURCE
#include "bundle.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define CONFIG "config.json"
#define NEXT ".config.json.gpushare"       /* being written */
#define OWN ".config.json.before-gpushare" /* the bundle's own, while an edited one has its place */

enum {
  WAIT_MS = 20000, /* longer than a start takes up to its hook: GS_START_MS, and the runtime */
  LOCK_MS = 5000,  /* far longer than any of us has the lock: somebody else has it, who may never give it back */
  LOOK_MS = 5,
  HIGH_FD = 100 /* above those that an engine has the runtime pass on (--preserve-fds) */
};

static const struct timespec look_again = {0, LOOK_MS * 1000000L};

/* Between wrappers and hooks, for as long as they look and rename. Whoever can read the directory can lock it, too. */
static bool lock(int dir) {
  for (int waited = 0; flock(dir, LOCK_EX | LOCK_NB) < 0 && (errno == EWOULDBLOCK || errno == EINTR);) {
    if (waited >= LOCK_MS)
      return false;
    waited += LOOK_MS;
    nanosleep(&look_again, NULL);
  }
  return true;
}

static void unlock(int dir) { flock(dir, LOCK_UN); }

/* Whether a start that is under way holds this file. */
static bool is_held(int dir, const char *name) {
  int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  bool held = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK;

  if (fd >= 0)
    close(fd);
  return held;
}

/* The edited config got the time stamp of the bundle's own: whatever has another one, somebody wrote. */
static void put_back(int dir) {
  struct stat own, now;

  if (fstatat(dir, OWN, &own, AT_SYMLINK_NOFOLLOW) < 0)
    return;
  if (S_ISREG(own.st_mode) && fstatat(dir, CONFIG, &now, AT_SYMLINK_NOFOLLOW) == 0 && own.st_ino != now.st_ino &&
      own.st_mtim.tv_sec == now.st_mtim.tv_sec && own.st_mtim.tv_nsec == now.st_mtim.tv_nsec)
    renameat(dir, OWN, dir, CONFIG);
  else
    unlinkat(dir, OWN, 0);
}

/* False: a start is under way. Call with the lock. */
static bool settled(int dir) {
  if (faccessat(dir, NEXT, F_OK, AT_SYMLINK_NOFOLLOW) == 0) {
    if (is_held(dir, NEXT))
      return false;
    unlinkat(dir, NEXT, 0);
  }
  if (faccessat(dir, OWN, F_OK, AT_SYMLINK_NOFOLLOW) == 0) {
    if (is_held(dir, CONFIG))
      return false;
    put_back(dir);
  }
  return true;
}

/* Returns with the lock. */
static int wait_for_others(int dir, struct gs_err *err) {
  for (int waited = 0;; waited += LOOK_MS) {
    if (!lock(dir))
      return gs_fail(err, -EBUSY, "a program has had the bundle's directory locked for %d s: see lslocks, and end it",
                     LOCK_MS / 1000);
    if (settled(dir))
      return 0;
    unlock(dir);
    if (waited >= WAIT_MS)
      return gs_fail(err, -EBUSY, "another start of this bundle has been under way for %d s: try again when it is over",
                     WAIT_MS / 1000);
    nanosleep(&look_again, NULL);
  }
}

int gs_bundle_settle(int dir, struct gs_err *err) {
  int code;

  if (faccessat(dir, NEXT, F_OK, AT_SYMLINK_NOFOLLOW) < 0 && faccessat(dir, OWN, F_OK, AT_SYMLINK_NOFOLLOW) < 0)
    return 0;
  code = wait_for_others(dir, err);
  if (!code)
    unlock(dir);
  return code;
}

int gs_bundle_claim(int dir, int *claim, struct gs_err *err) {
  int code = wait_for_others(dir, err), low;

  if (code)
    return code;
  low = openat(dir, NEXT, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  *claim = low < 0 ? -1 : fcntl(low, F_DUPFD_CLOEXEC, HIGH_FD);
  code = *claim < 0 ? gs_fail(err, -errno, NEXT ": %s", strerror(errno)) : 0;
  if (!code)
    flock(*claim, LOCK_EX | LOCK_NB);
  else if (low >= 0)
    unlinkat(dir, NEXT, 0);
  if (low >= 0)
    close(low);
  unlock(dir);
  return code;
}

void gs_bundle_leave(int dir, int claim) {
  (void)!lock(dir);
  unlinkat(dir, NEXT, 0);
  close(claim);
  unlock(dir);
}

static int write_all(int fd, struct gs_span text) {
  while (text.len) {
    ssize_t n = write(fd, text.at, text.len);

    if (n < 0 && errno == EINTR)
      continue;
    if (n <= 0)
      return n < 0 ? -errno : -EIO;
    text.at += n;
    text.len -= (size_t)n;
  }
  return 0;
}

/* Makes the claim, which the runtime inherits, and could hand on, a file that nobody can write to. Call with the lock,
 * under which nobody sees that it is not held meanwhile. */
static int pass_on(int dir, int claim) {
  int low = openat(dir, NEXT, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
  int code = low < 0 || dup3(low, claim, 0) < 0 ? -errno : 0;

  if (low >= 0)
    close(low);
  if (!code)
    flock(claim, LOCK_EX | LOCK_NB);
  return code;
}

/* Call with the lock. */
static int take_its_place(int dir, int claim, mode_t mode) {
  struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}};
  struct stat own;
  int code = 0;

  if (fstatat(dir, CONFIG, &own, AT_SYMLINK_NOFOLLOW) == 0)
    times[1] = own.st_mtim;
  if (fchmod(claim, mode) < 0 || futimens(claim, times) < 0)
    return -errno;
  (void)!linkat(dir, CONFIG, dir, OWN, 0);
  if (renameat(dir, NEXT, dir, CONFIG) < 0) {
    code = -errno;
    unlinkat(dir, OWN, 0);
  }
  return code;
}

int gs_bundle_replace(int dir, int claim, struct gs_span text, mode_t mode, struct gs_err *err) {
  int code = write_all(claim, text);

  if (!code && !lock(dir))
    code = -EBUSY;
  if (!code) {
    code = pass_on(dir, claim);
    if (!code)
      code = take_its_place(dir, claim, mode);
    unlock(dir);
  }
  if (!code)
    return 0;
  gs_bundle_leave(dir, claim);
  return gs_fail(err, code, CONFIG " cannot be replaced: %s", strerror(-code));
}

void gs_bundle_put_back(int dir) {
  if (faccessat(dir, OWN, F_OK, AT_SYMLINK_NOFOLLOW) < 0)
    return;
  if (!lock(dir))
    return;
  put_back(dir);
  unlock(dir);
}
