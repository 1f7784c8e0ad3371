#include "binding/gs_files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

/* Reports the errno of a failed system call: `what` was tried on `path`. */
static int failed(const char *what, const char *path, struct gs_err *err) {
  int code = errno;
  /* The path last: it may be longer than the message. */
  return gs_fail(err, -code, "cannot %s (%s): %s", what, strerror(code), path);
}

/* The functions below return -1 with errno set, like those of libc. */

static int write_all(int fd, const char *data, uint64_t bytes) {
  while (bytes > 0) {
    ssize_t written = write(fd, data, bytes);
    if (written >= 0) {
      data += written;
      bytes -= (uint64_t)written;
    } else if (errno != EINTR) {
      return -1;
    }
  }
  return 0;
}

static int allocate(int fd, uint64_t start, uint64_t bytes) {
  /* On a full tmpfs this fails; a write to the mapped page would be a SIGBUS. */
  int code = 0;
  if (bytes > 0)
    do
      code = posix_fallocate(fd, (off_t)start, (off_t)bytes);
    while (code == EINTR); /* tmpfs stops if a signal is pending, even with SA_RESTART */
  errno = code;
  return code == 0 ? 0 : -1;
}

static int write_file(const struct gs_step *step, const char *path, int flags, struct gs_err *err) {
  int fd = open(path, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC | flags, 0600);
  if (fd < 0)
    return failed("create a file", path, err);
  uint64_t room = step->room < step->size ? step->room : step->size;
  int rc = 0;
  if (write_all(fd, step->data, step->bytes) < 0)
    rc = failed("write a file", path, err);
  else if ((step->size > step->bytes && ftruncate(fd, (off_t)step->size) < 0) || allocate(fd, 0, room) < 0 ||
           allocate(fd, step->size - room, room) < 0)
    rc = failed("make room for a file", path, err);
  else if (fchmod(fd, step->mode) < 0)
    rc = failed("set a mode", path, err);
  close(fd);
  return rc;
}

static int replace(const struct gs_step *step, const char *path, struct gs_err *err) {
  int rc = write_file(step, step->text, O_TRUNC, err);
  if (rc == 0 && rename(step->text, path) < 0)
    rc = failed("put a file in place", path, err);
  if (rc < 0)
    unlink(step->text); /* the file may have been cut short by a full disk */
  return rc;
}

static int make_directory(const char *path, uint32_t mode, struct gs_err *err) {
  if (mkdir(path, mode) < 0 || chmod(path, mode) < 0)
    return failed("make a directory", path, err);
  return 0;
}

static int unmount(const char *path, struct gs_err *err) {
  /* Processes that have files of it open keep them. */
  if (umount2(path, MNT_DETACH | UMOUNT_NOFOLLOW) < 0)
    return failed("unmount", path, err);
  while (umount2(path, MNT_DETACH | UMOUNT_NOFOLLOW) == 0)
    continue;
  return 0;
}

/* Fails like stat(), and also with EACCES for anything but a regular file that all users may read. */
static int readable(const char *path) {
  struct stat found;
  if (stat(path, &found) < 0)
    return -1;
  errno = EACCES;
  return S_ISREG(found.st_mode) && (found.st_mode & S_IROTH) ? 0 : -1;
}

static int change(const struct gs_step *step, const char *path, struct gs_err *err) {
  static const char *const WHAT[] = {[GS_STEP_TMPFS] = "mount a tmpfs",      [GS_STEP_SYMLINK] = "make a symlink",
                                     [GS_STEP_OWNER] = "set an owner",       [GS_STEP_UNLINK] = "remove a file",
                                     [GS_STEP_RMDIR] = "remove a directory", [GS_STEP_READABLE] = "use a file"};
  int rc;
  switch (step->kind) {
    case GS_STEP_DIRECTORY: return make_directory(path, step->mode, err);
    case GS_STEP_FILE: return write_file(step, path, O_EXCL, err);
    case GS_STEP_REPLACE: return replace(step, path, err);
    case GS_STEP_UNMOUNT: return unmount(path, err);
    case GS_STEP_TMPFS: rc = mount("gpushare", path, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, step->text); break;
    case GS_STEP_SYMLINK: rc = symlink(step->text, path); break;
    case GS_STEP_OWNER: rc = lchown(path, step->uid, step->gid); break;
    case GS_STEP_UNLINK: rc = unlink(path); break;
    case GS_STEP_RMDIR: rc = rmdir(path); break;
    case GS_STEP_READABLE: rc = readable(path); break;
    default: return gs_fail(err, -EINVAL, "no step of a change to files has kind %u", step->kind);
  }
  return rc < 0 ? failed(WHAT[step->kind], path, err) : 0;
}

int gs_files_change(const char *directory, const struct gs_step *steps, uint32_t count, struct gs_err *err) {
  char path[PATH_MAX];
  for (uint32_t i = 0; i < count; i++) {
    const char *name = steps[i].path;
    int length = *name == '/' ? snprintf(path, sizeof path, "%s", name)
                              : snprintf(path, sizeof path, *name ? "%s/%s" : "%s%s", directory, name);
    if (length >= (int)sizeof path)
      return gs_fail(err, -ENAMETOOLONG, "a name in %.150s is too long", directory);
    int rc = change(&steps[i], path, err);
    if (rc < 0)
      return rc;
  }
  return 0;
}
