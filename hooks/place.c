/* When the createRuntime hook runs, the container has its mounts and its cgroup, but has not changed its root: in its
 * mount namespace the root file system is at its path on the host. No program of the image has run.
 *
 * Paths in the image are untrusted: each destination is looked up as inside the container (RESOLVE_IN_ROOT), so that no
 * symlink leads out. Sources are the host's and are opened before the namespace is entered. */
#define _GNU_SOURCE
#include "place.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

/* Kernel constants (linux/mount.h, linux/openat2.h; the same on every architecture), which the headers of the oldest
 * supported build system lack. mount_setattr is the newest, from Linux 5.12. */
enum { NR_OPEN_TREE = 428, NR_MOVE_MOUNT = 429, NR_OPENAT2 = 437, NR_MOUNT_SETATTR = 442 };
enum {
  TREE_CLONE = 1,          /* OPEN_TREE_CLONE */
  TREE_RECURSIVE = 0x8000, /* AT_RECURSIVE */
  MOVE_EMPTY_PATHS = 0x44, /* MOVE_MOUNT_F_EMPTY_PATH, MOVE_MOUNT_T_EMPTY_PATH */
  IN_ROOT = 0x10,          /* RESOLVE_IN_ROOT */
  NO_MAGICLINKS = 2,       /* RESOLVE_NO_MAGICLINKS */
  TMPFS = 0x01021994       /* TMPFS_MAGIC */
};
struct attributes {
  uint64_t set, clear, propagation, userns;
};
struct how {
  uint64_t flags, mode, resolve;
};

static const struct {
  const char *name;
  uint64_t flag; /* MOUNT_ATTR_... */
} options[] = {{"ro", 1}, {"nosuid", 2}, {"nodev", 4}, {"noexec", 8}};

enum { MOUNTS_MAX = 512 };

struct mount {
  struct gs_span text; /* a PlacedMount */
  int tree;            /* detached; -1: its source is inside the container */
};

/* The container's root, and the device of a file system that must not be mistaken for the container's own. */
struct place {
  int root;
  dev_t host_dev; /* of the host's /dev */
};

static bool text_of(struct gs_span object, const char *name, char out[PATH_MAX]) {
  struct gs_span value;

  return gs_json_member(object, name, &value) && gs_json_line(value, out, PATH_MAX);
}

static uint64_t flags_of(struct gs_span mount) {
  struct gs_span rest, value;
  uint64_t flags = 0;
  char word[16];

  if (!gs_json_member(mount, "options", &rest))
    return 0;
  while (gs_json_next(&rest, &value))
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
      if (gs_json_line(value, word, sizeof word) && strcmp(word, options[i].name) == 0)
        flags |= options[i].flag;
  return flags;
}

static bool is_inside(struct gs_span mount) {
  struct gs_span value;

  return gs_json_member(mount, "inside", &value) && value.len == 4 && memcmp(value.at, "true", 4) == 0;
}

/* Makes a detached copy of the source, with the mount's options. flags: TREE_RECURSIVE: with the mounts below it;
 * AT_EMPTY_PATH: of `at` itself. */
static int copy_tree(const struct mount *mount, int at, const char *source, int flags, int *tree, struct gs_err *err) {
  struct attributes attributes = {.set = flags_of(mount->text), .propagation = MS_PRIVATE};

  *tree = (int)syscall(NR_OPEN_TREE, at, flags & AT_EMPTY_PATH ? "" : source, TREE_CLONE | O_CLOEXEC | flags);
  if (*tree < 0)
    return gs_fail(err, -errno, "%.120s cannot be mounted into the container: %s%s", source, strerror(errno),
                   errno == ENOENT ? ". Has the engine a mount namespace of its own, away from the daemon's?" : "");
  if (syscall(NR_MOUNT_SETATTR, *tree, "", AT_EMPTY_PATH | TREE_RECURSIVE, &attributes, sizeof attributes) < 0)
    return gs_fail(err, -errno, "the options of %.150s cannot be set: %s", source, strerror(errno));
  return 0;
}

static int copy_all(struct gs_span answer, struct mount *mounts, size_t *count, struct gs_err *err) {
  char source[PATH_MAX];
  struct gs_span rest, value;
  int code;

  if (!gs_json_member(answer, "mounts", &rest))
    return gs_fail(err, -EPROTO, "the daemon answered without mounts");
  for (*count = 0; gs_json_next(&rest, &value); ++*count) {
    if (*count == MOUNTS_MAX)
      return gs_fail(err, -E2BIG, "more than %d mounts for one container", MOUNTS_MAX);
    mounts[*count] = (struct mount){.text = value, .tree = -1};
    if (!text_of(value, "source", source))
      return gs_fail(err, -EPROTO, "the daemon answered with a mount of nothing");
    if (is_inside(value))
      continue;
    if ((code = copy_tree(&mounts[*count], AT_FDCWD, source, TREE_RECURSIVE, &mounts[*count].tree, err)))
      return code;
  }
  return 0;
}

/* Enters the container's mount namespace. */
static int enter(pid_t pid, struct gs_err *err) {
  struct stat theirs, ours;
  char path[64];
  int fd;

  snprintf(path, sizeof path, "/proc/%d/ns/mnt", (int)pid);
  fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0 || fstat(fd, &theirs) < 0 || stat("/proc/self/ns/mnt", &ours) < 0)
    return gs_fail(err, -errno, "the container's mount namespace cannot be opened: %s", strerror(errno));
  if (theirs.st_ino == ours.st_ino)
    return gs_fail(err, -EINVAL, "the container has no mount namespace of its own: what it gets would be the host's");
  if (setns(fd, CLONE_NEWNS) < 0)
    return gs_fail(err, -errno, "the container's mount namespace cannot be entered: %s", strerror(errno));
  close(fd);
  return 0;
}

/* Opens the container's root as its first process sees it: that process may be in a chroot, which setns would leave. */
static int open_root(pid_t pid, struct gs_span answer, int *root, struct gs_err *err) {
  char path[PATH_MAX], whole[PATH_MAX + 32];

  if (!text_of(answer, "root", path))
    return gs_fail(err, -EPROTO, "the daemon answered without the container's root");
  snprintf(whole, sizeof whole, "/proc/%d/root%s", (int)pid, path);
  *root = open(whole, O_PATH | O_DIRECTORY | O_CLOEXEC);
  return *root < 0 ? gs_fail(err, -errno, "the container's root %.150s cannot be opened: %s", path, strerror(errno))
                   : 0;
}

/* Opens a path in the container with O_PATH; -1 and errno on failure. */
static int find(int root, const char *path, int flags) {
  struct how how = {.flags = (uint64_t)(O_PATH | O_CLOEXEC | flags), .resolve = IN_ROOT | NO_MAGICLINKS};

  return (int)syscall(NR_OPENAT2, root, path, &how, sizeof how);
}

/* Copies a source inside the container, without the mounts below it: the interposer is mounted over each driver library
 * of the image, and here the image's own library is wanted. */
static int copy_inside(struct mount *mount, int root, struct gs_err *err) {
  char source[PATH_MAX];
  int at, code;

  if (!text_of(mount->text, "source", source))
    return gs_fail(err, -EPROTO, "the daemon answered with a mount of nothing");
  at = find(root, source, 0);
  if (at < 0)
    return gs_fail(err, -errno, "%.150s of the container cannot be opened: %s", source, strerror(errno));
  code = copy_tree(mount, at, source, AT_EMPTY_PATH, &mount->tree, err);
  close(at);
  return code;
}

static int attach(struct mount *mount, int root, struct gs_err *err) {
  char path[PATH_MAX];
  int target, code;

  if (!text_of(mount->text, "destination", path))
    return gs_fail(err, -EPROTO, "the daemon answered with a mount to nowhere");
  if (mount->tree < 0 && (code = copy_inside(mount, root, err)))
    return code;
  target = find(root, path, 0);
  if (target < 0 || syscall(NR_MOVE_MOUNT, mount->tree, "", target, "", MOVE_EMPTY_PATHS) < 0)
    return gs_fail(err, -errno, "nothing can be mounted at %.150s in the container: %s", path, strerror(errno));
  close(target);
  return 0;
}

/* Removes a node that the engine made in the container's own /dev. Other nodes stay: the device program at the cgroup
 * denies opening what is not granted, whatever its name. */
static void hide(const char *path, const struct place *at) {
  char directory[PATH_MAX];
  struct stat node, parent;
  struct statfs kind;
  const char *name = strrchr(path, '/');
  int fd;

  if (!name || name == path)
    return;
  snprintf(directory, sizeof directory, "%.*s", (int)(name - path), path);
  fd = find(at->root, directory, O_DIRECTORY);
  if (fd < 0)
    return;
  if (fstat(fd, &parent) == 0 && fstatfs(fd, &kind) == 0 && kind.f_type == TMPFS && parent.st_dev != at->host_dev &&
      fstatat(fd, name + 1, &node, AT_SYMLINK_NOFOLLOW) == 0 && S_ISCHR(node.st_mode))
    unlinkat(fd, name + 1, 0);
  close(fd);
}

static void hide_all(struct gs_span answer, const struct place *at) {
  struct gs_span rest, value;
  char path[PATH_MAX];

  if (gs_json_member(answer, "hidden", &rest))
    while (gs_json_next(&rest, &value))
      if (gs_json_line(value, path, sizeof path))
        hide(path, at);
}

int gs_place(pid_t pid, struct gs_span answer, struct gs_err *err) {
  static struct mount mounts[MOUNTS_MAX];
  struct stat host;
  struct place at;
  size_t count = 0;
  int code;

  if ((code = open_root(pid, answer, &at.root, err)) || (code = copy_all(answer, mounts, &count, err)))
    return code;
  at.host_dev = stat("/dev", &host) == 0 ? host.st_dev : 0;
  if ((code = enter(pid, err)))
    return code;
  for (size_t i = 0; i < count; i++)
    if ((code = attach(&mounts[i], at.root, err)))
      return code;
  hide_all(answer, &at);
  return 0;
}
