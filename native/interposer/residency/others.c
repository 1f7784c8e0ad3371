#include "interposer/residency/others.h"

#include <errno.h>
#include <string.h>

#include "interposer/os/system.h"

/* Files of devices to which memory of a GPU can be given: network cards, GDRCopy, GPUDirect Storage. */
static const char *const DEVICES[] = {"/dev/infiniband/", "/dev/gdrdrv", "/dev/nvidia-fs"};

/* Libraries that submit work, or hand memory to other engines, through the driver's private tables. */
static const char *const LIBRARIES[] = {"/libnvoptix.so", "/libnvidia-encode.so", "/libnvcuvid.so",
                                        "/libnvidia-opticalflow.so"};

static bool is_device(const char *path) {
  for (unsigned i = 0; i < sizeof DEVICES / sizeof *DEVICES; i++)
    if (strncmp(path, DEVICES[i], strlen(DEVICES[i])) == 0)
      return true;
  return false;
}

static bool names_one(const char *line) {
  const char *path = strchr(line, '/');
  if (path && is_device(path))
    return true;
  for (unsigned i = 0; path && i < sizeof LIBRARIES / sizeof *LIBRARIES; i++)
    if (strstr(path, LIBRARIES[i]))
      return true;
  return false;
}

/* Whether what could not be opened may have had something to see: a process that is out of descriptors has it. Without
 * /proc nothing can be seen. */
static bool hides(int file) { return file < 0 && errno != ENOENT; }

/* No line is longer than the buffer: a path has at most 4096 bytes. */
static bool in_mappings(void) {
  char text[8192];
  size_t have = 0;
  int file = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  bool found = hides(file);
  for (ssize_t got; file >= 0 && !found && (got = read(file, text + have, sizeof text - 1 - have)) > 0;) {
    char *line = text, *end;
    have += (size_t)got;
    text[have] = 0;
    while (!found && (end = strchr(line, '\n'))) {
      *end = 0;
      found = names_one(line);
      line = end + 1;
    }
    have -= (size_t)(line - text);
    if (have == sizeof text - 1)
      break;
    memmove(text, line, have);
  }
  if (file >= 0)
    close(file);
  return found;
}

/* An entry of a directory as the kernel gives it. */
struct entry {
  uint64_t inode, offset;
  unsigned short length;
  unsigned char type;
  char name[];
};

static bool in_files(void) {
  _Alignas(struct entry) char entries[2048];
  int directory = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  bool found = hides(directory);
  for (long got; directory >= 0 && !found && (got = syscall(SYS_getdents64, directory, entries, sizeof entries)) > 0;)
    for (long at = 0; at < got && !found; at += ((struct entry *)(entries + at))->length) {
      char path[64];
      ssize_t length = readlinkat(directory, ((struct entry *)(entries + at))->name, path, sizeof path - 1);
      path[length > 0 ? length : 0] = 0;
      found = is_device(path);
    }
  if (directory >= 0)
    close(directory);
  return found;
}

bool gs_others_use_memory(void) {
  int saved = errno;
  bool found = in_files() || in_mappings();
  errno = saved;
  return found;
}
