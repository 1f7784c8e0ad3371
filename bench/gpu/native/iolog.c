/* Preloaded: what a program asks of the driver's kernel half. One line per call to the file that IOLOG names:
 *
 *   ioctl FILE NR SIZE SECOND RESULT STATUS        mmap FILE LENGTH SHARED WRITABLE
 *   object FILE DESCRIPTOR CLIENT PARENT HANDLE CLASS ENGINE
 *
 * SECOND is the class of an RM_ALLOC, the command of an RM_CONTROL, the function of a VID_HEAP_CONTROL. An object is a
 * channel, a group of channels (ENGINE: which one it is for) or a subdevice that was made. With IOLOG_DENY=1 in the
 * environment, every allocation of device memory (RM_ALLOC of class 0x40, or heap functions 2, 6, 14) is answered
 * -ENOMEM without asking the kernel, from the moment that the file IOLOG.deny exists. IOLOG_FILES: what the names of
 * the files begin with, instead of /dev/nvidia.
 *
 * Numbers and offsets are of NVIDIA's open GPU kernel modules 580.142: nvos.h, nv_escape.h, nv-ioctl-numbers.h. The
 * requests of uvm are plain numbers. */
#define _GNU_SOURCE
#include <dlfcn.h>
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

enum { ALLOC_MEMORY = 0x27, RM_CONTROL = 0x2a, RM_ALLOC = 0x2b, VID_HEAP = 0x4a, XFER = 0xd3 };
enum { LOCAL_USER = 0x40, SUBDEVICE = 0x2080, CHANNEL_GROUP = 0xa06c, CHANNEL = 0x6f /* the low byte, since Volta */ };
enum { NVOS64_BYTES = 48, HEAP_VIRTUAL = 0x80000, ATTR_LOCATION_SHIFT = 25 /* 2 bits; 0: device memory */ };
enum { OBJECT_PARENT = 4, OBJECT_NEW = 8, OBJECT_CLASS = 12, OBJECT_PARAMETERS = 16, GROUP_ENGINE = 12 };

/* A request as the kernel half of the driver takes it: a transfer is unpacked. `at` NULL: there is none. */
struct request {
  unsigned nr, size;
  const void *at;
};

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
  const char *files = getenv("IOLOG_FILES");
  if (!files)
    files = "/dev/nvidia";
  return strncmp(name, files, strlen(files)) == 0;
}

static uint32_t word(const void *at, unsigned offset) {
  uint32_t value;
  memcpy(&value, (const char *)at + offset, sizeof value);
  return value;
}

static const void *pointer(const void *at, unsigned offset) {
  uint64_t value;
  memcpy(&value, (const char *)at + offset, sizeof value);
  return (const void *)(uintptr_t)value;
}

static struct request request_of(const char *name, unsigned long number, const void *argument) {
  if (strstr(name, "uvm"))
    return (struct request){.nr = (unsigned)number};
  if (_IOC_NR(number) == XFER && argument)
    return (struct request){word(argument, 0), word(argument, 4), pointer(argument, 8)};
  return (struct request){_IOC_NR(number), _IOC_SIZE(number), argument};
}

static uint32_t second_of(const struct request *r) {
  if (!r->at)
    return 0;
  if (r->nr == RM_ALLOC || r->nr == ALLOC_MEMORY)
    return word(r->at, OBJECT_CLASS);
  return r->nr == RM_CONTROL || r->nr == VID_HEAP ? word(r->at, 8) : 0;
}

static uint32_t status_of(const struct request *r) {
  if (!r->at)
    return 0;
  switch (r->nr) {
    case RM_ALLOC: return word(r->at, r->size >= NVOS64_BYTES ? 40 : 28);
    case ALLOC_MEMORY: return word(r->at, 40);
    case RM_CONTROL: return word(r->at, 28);
    case VID_HEAP: return word(r->at, 20);
  }
  return 0;
}

static bool takes_memory(const struct request *r, uint32_t second) {
  if (r->nr == RM_ALLOC)
    return second == LOCAL_USER;
  if (r->nr != VID_HEAP || !r->at || (second != 2 && second != 6 && second != 14) || (word(r->at, 52) & HEAP_VIRTUAL))
    return false;
  return (word(r->at, second == 6 ? 64 : 56) >> ATTR_LOCATION_SHIFT & 3) == 0;
}

static bool denied(const struct request *r, uint32_t second) {
  char path[512];
  const char *base = getenv("IOLOG");
  if (!takes_memory(r, second) || !getenv("IOLOG_DENY") || !base)
    return false;
  snprintf(path, sizeof path, "%s.deny", base);
  return access(path, F_OK) == 0;
}

/* The handle of the object may be the driver's choice: after the call. */
static void write_object(const char *name, int fd, const struct request *r, uint32_t class) {
  char line[256];
  bool channel = (class & 0xff) == CHANNEL && class > 0xc000;
  if (r->nr != RM_ALLOC || (class != SUBDEVICE && class != CHANNEL_GROUP && !channel) || status_of(r) != 0)
    return;
  const void *parameters = pointer(r->at, OBJECT_PARAMETERS);
  uint32_t engine = class == CHANNEL_GROUP && parameters ? word(parameters, GROUP_ENGINE) : 0;
  write_line(line, snprintf(line, sizeof line, "object %s 0x%x 0x%x 0x%x 0x%x 0x%x 0x%x\n", name, (unsigned)fd,
                            word(r->at, 0), word(r->at, OBJECT_PARENT), word(r->at, OBJECT_NEW), class, engine));
}

__attribute__((visibility("default"))) int ioctl(int fd, unsigned long request, ...) {
  static int (*next)(int, unsigned long, ...);
  char name[128], line[256];
  va_list list;
  va_start(list, request);
  void *argument = va_arg(list, void *);
  va_end(list);
  int saved = errno;
  bool ours = device_of(fd, name, sizeof name);
  if (!next)
    next = (int (*)(int, unsigned long, ...))dlsym(RTLD_NEXT, "ioctl");
  errno = saved;
  if (!ours)
    return next(fd, request, argument);
  struct request r = request_of(name, request, argument);
  uint32_t second = second_of(&r);
  bool deny = denied(&r, second);
  errno = deny ? ENOMEM : saved;
  int result = deny ? -1 : next(fd, request, argument);
  saved = errno;
  write_line(line, snprintf(line, sizeof line, "ioctl %s 0x%x %u 0x%x %d 0x%x%s\n", name, r.nr, r.size, second, result,
                            deny ? 0 : status_of(&r), deny ? " denied" : ""));
  if (result == 0)
    write_object(name, fd, &r, second);
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

__attribute__((visibility("default"))) void *mmap(void *at, size_t length, int protection, int flags, int fd,
                                                  off_t offset) {
  return map(at, length, protection, flags, fd, offset);
}
__attribute__((visibility("default"))) void *mmap64(void *at, size_t length, int protection, int flags, int fd,
                                                    off_t offset) {
  return map(at, length, protection, flags, fd, offset);
}
