/* Preloaded: what a program asks of the driver's kernel half. One line per call to the file that IOLOG names:
 *
 *   ioctl FILE NR SIZE SECOND RESULT STATUS        mmap FILE LENGTH SHARED WRITABLE
 *
 * SECOND is the class of an RM_ALLOC, the command of an RM_CONTROL, the function of a VID_HEAP_CONTROL. With IOLOG_DENY=1 in the
 * environment, every allocation of device memory (RM_ALLOC of class 0x40, or heap functions 2, 6, 14) is answered -ENOMEM without
 * asking the kernel, from the moment that the file IOLOG.deny exists. Numbers and offsets are of NVIDIA's open kernel modules. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { RM_CONTROL = 0x2a, RM_ALLOC = 0x2b, VID_HEAP = 0x4a, CLASS_LOCAL_USER = 0x40 };

static int out = -1;

static void write_line(const char *line, int length) {
  if (out < 0) {
    const char *path = getenv("IOLOG");
    out = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
  }
  if (out >= 0 && write(out, line, (size_t)length) < 0)
    out = -1;
}

static bool device_of(int fd, char *name, size_t size) {
  char link[32];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, name, size - 1);
  if (n < 0)
    return false;
  name[n] = '\0';
  return strncmp(name, "/dev/nvidia", 11) == 0;
}

static uint32_t word(const void *at, unsigned offset) {
  uint32_t value;
  memcpy(&value, (const char *)at + offset, sizeof value);
  return value;
}

static uint32_t second_of(unsigned nr, const void *argument) {
  return nr == RM_ALLOC ? word(argument, 12) : nr == RM_CONTROL || nr == VID_HEAP ? word(argument, 8) : 0;
}

static uint32_t status_of(unsigned nr, unsigned size, const void *argument) {
  if (nr == RM_ALLOC)
    return word(argument, size >= 48 ? 40 : 28);
  return nr == RM_CONTROL ? word(argument, 28) : nr == VID_HEAP ? word(argument, 20) : 0;
}

static bool denied(unsigned nr, uint32_t second) {
  static const uint32_t heap[] = {2, 6, 14};
  char path[512];
  const char *base = getenv("IOLOG");
  bool allocates = nr == RM_ALLOC && second == CLASS_LOCAL_USER;
  for (unsigned i = 0; nr == VID_HEAP && i < 3; i++)
    allocates = allocates || second == heap[i];
  if (!allocates || !getenv("IOLOG_DENY") || !base)
    return false;
  snprintf(path, sizeof path, "%s.deny", base);
  return access(path, F_OK) == 0;
}

__attribute__((visibility("default"))) int ioctl(int fd, unsigned long request, ...) {
  char name[128], line[256];
  va_list list;
  va_start(list, request);
  void *argument = va_arg(list, void *);
  va_end(list);
  int saved = errno;
  bool ours = device_of(fd, name, sizeof name);
  errno = saved;
  if (!ours)
    return (int)syscall(SYS_ioctl, fd, request, argument);
  bool frontend = strstr(name, "uvm") == NULL; /* uvm has plain numbers, no sizes */
  unsigned nr = frontend ? _IOC_NR(request) : (unsigned)request, size = frontend ? _IOC_SIZE(request) : 0;
  uint32_t second = frontend && argument ? second_of(nr, argument) : 0;
  bool deny = frontend && denied(nr, second);
  if (deny)
    errno = ENOMEM;
  int result = deny ? -1 : (int)syscall(SYS_ioctl, fd, request, argument);
  saved = errno;
  write_line(line, snprintf(line, sizeof line, "ioctl %s 0x%x %u 0x%x %d 0x%x%s\n", name, nr, size, second, result,
                            frontend && argument && !deny ? status_of(nr, size, argument) : 0, deny ? " denied" : ""));
  errno = saved;
  return result;
}

static void *map(void *at, size_t length, int protection, int flags, int fd, off_t offset) {
  char name[128], line[256];
  int saved = errno;
  if (fd >= 0 && device_of(fd, name, sizeof name))
    write_line(line, snprintf(line, sizeof line, "mmap %s %zu %d %d\n", name, length, !!(flags & MAP_SHARED),
                              !!(protection & PROT_WRITE)));
  errno = saved;
  return (void *)syscall(SYS_mmap, at, length, protection, flags, fd, offset);
}

__attribute__((visibility("default"))) void *mmap(void *at, size_t length, int protection, int flags, int fd, off_t offset) {
  return map(at, length, protection, flags, fd, offset);
}
__attribute__((visibility("default"))) void *mmap64(void *at, size_t length, int protection, int flags, int fd, off_t offset) {
  return map(at, length, protection, flags, fd, offset);
}
