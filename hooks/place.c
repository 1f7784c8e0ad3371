/* When the createRuntime hook runs, the container has its mounts and its cgroup, but has not changed its root: in its
 * mount namespace the root file system is at its path on the host. No program of the image has run.
 *
 * What the container sees at a path is believed only if it is the very file or directory that was to be mounted (device
 * and inode): something may be mounted over it, by an engine in another order, for a volume, or by an image that
 * declares one. Where it is something else, ours is mounted there, after everything else; in the end all of it is
 * looked at again.
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
#include <sys/fsuid.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
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

/* The flags are those of mount_setattr (MOUNT_ATTR_...) and of statfs. */
static const struct {
  const char *name;
  uint64_t flag;
} options[] = {{"ro", ST_RDONLY}, {"nosuid", ST_NOSUID}, {"nodev", ST_NODEV}, {"noexec", ST_NOEXEC}};

enum { MOUNTS_MAX = 512, SHOWS_MAX = 8 };

/* What a file is, whatever its path. */
struct identity {
  dev_t dev;
  ino_t ino;
};

struct mount {
  struct gs_span text;                  /* a PlacedMount (gpushare/api/engines.py) */
  int tree;                             /* the source, detached; -1: it is inside the container, and not copied yet */
  bool fixed;                           /* cannot be attached: this kernel cannot set its options */
  struct identity is, shows[SHOWS_MAX]; /* the source, and the files in it that have to be seen */
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

static bool is_set(struct gs_span mount, const char *name) {
  struct gs_span value;

  return gs_json_member(mount, name, &value) && value.len == 4 && memcmp(value.at, "true", 4) == 0;
}

/* Makes a detached copy of the source, with the mount's options. flags: TREE_RECURSIVE: with the mounts below it;
 * AT_EMPTY_PATH: of `at` itself. */
static int copy_tree(struct mount *mount, int at, const char *source, int flags, struct gs_err *err) {
  struct attributes attributes = {.set = flags_of(mount->text), .propagation = MS_PRIVATE};

  mount->tree = (int)syscall(NR_OPEN_TREE, at, flags & AT_EMPTY_PATH ? "" : source, TREE_CLONE | O_CLOEXEC | flags);
  if (mount->tree < 0)
    return gs_fail(err, -errno, "%.120s cannot be mounted into the container: %s%s", source, strerror(errno),
                   errno == ENOENT ? ". Has the engine a mount namespace of its own, away from the daemon's?" : "");
  if (syscall(NR_MOUNT_SETATTR, mount->tree, "", AT_EMPTY_PATH | TREE_RECURSIVE, &attributes, sizeof attributes) < 0) {
    if (errno != ENOSYS)
      return gs_fail(err, -errno, "the options of %.150s cannot be set: %s", source, strerror(errno));
    mount->fixed = true;
  }
  return 0;
}

/* What a name in a directory is; "": what the directory, or a file, is itself. No such name: all zero. */
static struct identity identity_of(int at, const char *name) {
  struct stat found = {0};

  if (fstatat(at, name, &found, AT_SYMLINK_NOFOLLOW | (*name ? 0 : AT_EMPTY_PATH)) < 0)
    return (struct identity){0};
  return (struct identity){found.st_dev, found.st_ino};
}

static bool same(struct identity a, struct identity b) { return a.ino && a.dev == b.dev && a.ino == b.ino; }

/* Reads the next name of those that a mount has to show. */
static bool next_shown(struct gs_span *rest, char name[NAME_MAX + 1]) {
  struct gs_span value;

  return gs_json_next(rest, &value) && gs_json_line(value, name, NAME_MAX + 1) && *name;
}

/* Notes what the source is, before anything in the container can cover a part of it. */
static int note(struct mount *mount, const char *source, struct gs_err *err) {
  char name[NAME_MAX + 1];
  struct gs_span rest;
  size_t n = 0;

  mount->is = identity_of(mount->tree, "");
  if (gs_json_member(mount->text, "shows", &rest))
    while (next_shown(&rest, name)) {
      if (n == SHOWS_MAX || !(mount->shows[n] = identity_of(mount->tree, name)).ino)
        return gs_fail(err, -ENOENT, "%.90s has no %.40s: has the grant ended, or is the installation damaged?", source,
                       name);
      n++;
    }
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
    if (is_set(value, "inside"))
      continue;
    if ((code = copy_tree(&mounts[*count], AT_FDCWD, source, TREE_RECURSIVE, err)) ||
        (code = note(&mounts[*count], source, err)))
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
  code = copy_tree(mount, at, source, AT_EMPTY_PATH, err);
  close(at);
  return code ? code : note(mount, source, err);
}

/* Whether the container sees the mount at its place: all that it has to show, as writable and executable as it is to
 * be. */
static bool is_seen(const struct mount *mount, int root) {
  uint64_t wanted = flags_of(mount->text), flags;
  char path[PATH_MAX], name[NAME_MAX + 1];
  struct statfs kind;
  struct gs_span rest;
  bool seen;
  int fd = text_of(mount->text, "destination", path) ? find(root, path, 0) : -1;

  if (fd < 0)
    return false;
  seen = same(mount->is, identity_of(fd, "")) && fstatfs(fd, &kind) == 0;
  flags = seen ? (uint64_t)kind.f_flags : 0;
  seen = seen && !((flags ^ wanted) & ST_RDONLY) && !(flags & ~wanted & ST_NOEXEC);
  if (gs_json_member(mount->text, "shows", &rest))
    for (size_t i = 0; seen && i < SHOWS_MAX && next_shown(&rest, name); i++)
      seen = same(mount->shows[i], identity_of(fd, name));
  close(fd);
  return seen;
}

/* Makes a file or directory as the owner of the directory `in` would: in a file system that belongs to a user
 * namespace, root outside of it can make nothing. Returns it opened with O_PATH; -1 and errno on failure. */
static int make(int in, const char *name, mode_t kind) {
  struct stat parent;
  int made;

  if (fstat(in, &parent) < 0)
    return -1;
  setfsgid(parent.st_gid);
  setfsuid(parent.st_uid);
  made = S_ISDIR(kind) ? mkdirat(in, name, 0755) : mknodat(in, name, S_IFREG | 0644, 0);
  setfsuid(geteuid());
  setfsgid(getegid());
  return made == 0 || errno == EEXIST ? openat(in, name, O_PATH | O_NOFOLLOW | O_CLOEXEC) : -1;
}

/* Makes a mount point for a tree, and the directories that it is in. Returns it opened with O_PATH; -1 and errno on
 * failure. */
static int make_point(int root, char *path, int tree) {
  struct stat wanted;
  int in = -1, at = fstat(tree, &wanted) == 0 ? find(root, "/", O_DIRECTORY) : -1;

  for (char *end = path; at >= 0 && *end;) {
    char *name = end + 1;
    bool last;

    end = name + strcspn(name, "/");
    last = !*end;
    *end = '\0';
    in = at;
    at = find(root, path, 0);
    if (at < 0 && errno == ENOENT)
      at = make(in, name, last ? wanted.st_mode : S_IFDIR);
    close(in);
    if (!last)
      *end = '/';
  }
  return at;
}

static int attach(const struct mount *mount, int root, struct gs_err *err) {
  char path[PATH_MAX];
  int target;

  if (!text_of(mount->text, "destination", path))
    return gs_fail(err, -EPROTO, "the daemon answered with a mount to nowhere");
  if (mount->fixed)
    return gs_fail(err, -ENOSYS,
                   "something is mounted over %.90s in the container: mount nothing there, or use Linux 5.12 or later",
                   path);
  target = find(root, path, 0);
  if (target < 0 && errno == ENOENT && is_set(mount->text, "make"))
    target = make_point(root, path, mount->tree);
  if (target < 0 || syscall(NR_MOVE_MOUNT, mount->tree, "", target, "", MOVE_EMPTY_PATHS) < 0)
    return gs_fail(err, -errno, "nothing can be mounted at %.90s in the container: %s. Mount a tmpfs or nothing there",
                   path, strerror(errno));
  close(target);
  return 0;
}

/* Attaches a mount that the container does not see. */
static int show(struct mount *mount, int root, struct gs_err *err) {
  int code;

  if (mount->tree < 0 && (code = copy_inside(mount, root, err)))
    return code;
  if (is_seen(mount, root) || (code = attach(mount, root, err)) == 0 || is_set(mount->text, "optional"))
    return 0;
  return code;
}

/* Looks at everything again, now that nothing more is mounted: a later mount may have covered an earlier one, and others
 * who have a volume of the container may have changed it meanwhile. */
static int look(const struct mount *mounts, size_t count, int root, struct gs_err *err) {
  char path[PATH_MAX];

  for (size_t i = 0; i < count; i++)
    if (!is_seen(&mounts[i], root) && !is_set(mounts[i].text, "optional"))
      return gs_fail(err, -ESTALE,
                     "the container would start without its share: at %.80s it sees something else than was mounted "
                     "there: mount nothing over it",
                     text_of(mounts[i].text, "destination", path) ? path : "");
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
    if ((code = show(&mounts[i], at.root, err)))
      return code;
  hide_all(answer, &at);
  return look(mounts, count, at.root, err);
}
