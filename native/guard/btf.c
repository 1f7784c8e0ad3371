#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "guard/btf.h"

/* Documentation/bpf/btf.rst */
#define KIND(info) ((info) >> 24 & 0x1f)
#define LENGTH(info) ((info) & 0xffff)
#define BITFIELDS(info) ((info) >> 31)
enum { KIND_INT = 1, KIND_ARRAY = 3, KIND_STRUCT = 4, KIND_UNION = 5, KIND_ENUM = 6, KIND_FUNC = 12, KIND_PROTO = 13 };
enum { KIND_VAR = 14, KIND_DATASEC = 15, KIND_DECL_TAG = 17, KIND_ENUM64 = 19 };

static const char path[] = "/sys/kernel/btf/vmlinux";

struct header {
  uint16_t magic;
  uint8_t version, flags;
  uint32_t length, types_at, types_size, strings_at, strings_size;
};

struct wanted {
  const char *type, *member;
  size_t to; /* in struct gs_settings */
};

/* The member that counts a file's references: since Linux 6.13, and before. */
static const char f_ref[] = "f_ref", f_count[] = "f_count";

static const struct wanted wanted[] = {
    {"task_struct", "files", offsetof(struct gs_settings, task_files)},
    {"task_struct", "signal", offsetof(struct gs_settings, task_signal)},
    {"files_struct", "fdt", offsetof(struct gs_settings, files_fdt)},
    {"fdtable", "max_fds", offsetof(struct gs_settings, fdt_max)},
    {"fdtable", "fd", offsetof(struct gs_settings, fdt_fds)},
    {"file", "f_inode", offsetof(struct gs_settings, file_inode)},
    {"file", f_ref, offsetof(struct gs_settings, file_references)},
    {"inode", "i_mode", offsetof(struct gs_settings, inode_mode)},
    {"inode", "i_rdev", offsetof(struct gs_settings, inode_rdev)},
    {"signal_struct", "live", offsetof(struct gs_settings, signal_live)},
#if defined __x86_64__
    {"thread_info", "status", offsetof(struct gs_settings, task_compat)},
#elif defined __aarch64__
    {"thread_info", "flags", offsetof(struct gs_settings, task_compat)},
#endif
};

/* Number of 32-bit words that follow a type's first three. -1: unknown kind. */
static int words_after(uint32_t info) {
  int length = (int)LENGTH(info);
  switch (KIND(info)) {
    case KIND_INT:
    case KIND_VAR:
    case KIND_DECL_TAG: return 1;
    case KIND_ARRAY: return 3;
    case KIND_STRUCT:
    case KIND_UNION:
    case KIND_DATASEC:
    case KIND_ENUM64: return 3 * length;
    case KIND_ENUM:
    case KIND_PROTO: return 2 * length;
    default: return KIND(info) && KIND(info) < KIND_ENUM64 ? 0 : -1;
  }
}

/* The offset in bytes of a struct's direct member; -1: it has none. */
static long offset_of(const uint32_t *type, const char *strings, const char *member) {
  const uint32_t *row = type + 3;
  for (uint32_t i = 0; i < LENGTH(type[1]); i++, row += 3)
    if (!strcmp(strings + row[0], member))
      return (long)((BITFIELDS(type[1]) ? row[2] & 0xffffff : row[2]) / 8);
  return -1;
}

static int read_types(const char *data, size_t size, struct gs_settings *settings, uint32_t *iterator,
                      struct gs_err *err) {
  struct header head;
  if (size < sizeof head)
    return gs_fail(err, -EBADMSG, "%s is cut off", path);
  memcpy(&head, data, sizeof head);
  if (head.magic != 0xeb9f || head.version != 1 || (uint64_t)head.length + head.types_at + head.types_size > size ||
      (uint64_t)head.length + head.strings_at + head.strings_size > size)
    return gs_fail(err, -EBADMSG, "%s is of a form that is not known", path);
  const uint32_t *type = (const uint32_t *)(data + head.length + head.types_at);
  const uint32_t *end = type + head.types_size / 4;
  const char *strings = data + head.length + head.strings_at;
  uint32_t found = 0;
  *iterator = 0;
  for (uint32_t id = 1; type + 3 <= end; id++) {
    int after = words_after(type[1]);
    if (after < 0)
      return gs_fail(err, -EBADMSG, "%s has types of a kind that is not known", path);
    const char *name = strings + type[0];
    if (KIND(type[1]) == KIND_FUNC && !strcmp(name, "bpf_iter_task_file"))
      *iterator = id;
    for (size_t i = 0; KIND(type[1]) == KIND_STRUCT && i < sizeof wanted / sizeof *wanted; i++) {
      if (strcmp(name, wanted[i].type) != 0)
        continue;
      long offset = offset_of(type, strings, wanted[i].member);
      if (offset < 0 && wanted[i].member == f_ref && (offset = offset_of(type, strings, f_count)) >= 0)
        settings->one_reference = 1;
      if (offset < 0)
        continue; /* another struct of the same name */
      *(uint32_t *)((char *)settings + wanted[i].to) = (uint32_t)offset;
      found |= 1u << i;
    }
    type += 3 + after;
  }
  for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
    if (!(found & 1u << i))
      return gs_fail(err, -ENOTSUP, "this kernel has no %s.%s", wanted[i].type, wanted[i].member);
  if (!*iterator)
    return gs_fail(err, -ENOTSUP, "this kernel has no iterator over descriptors: Linux 5.13 is needed");
  return 0;
}

static int read_registers(struct gs_settings *settings, struct gs_err *err) {
#if defined __x86_64__
  /* struct pt_regs, arch/x86/include/uapi/asm/ptrace.h. thread_info is the first member of task_struct. */
  enum { BX = 40, CX = 88, DX = 96, SI = 104, DI = 112, ORIG_AX = 120, TS_COMPAT = 2 };
  settings->number = ORIG_AX;
  settings->arguments[0] = DI, settings->arguments[1] = SI, settings->arguments[2] = DX;
  settings->arguments_compat[0] = BX, settings->arguments_compat[1] = CX, settings->arguments_compat[2] = DX;
  settings->compat_mask = TS_COMPAT;
  settings->ioctl_x32 = 0x40000000 + 514;
#elif defined __aarch64__
  /* struct pt_regs, arch/arm64/include/asm/ptrace.h; TIF_32BIT */
  settings->number = 280;
  for (uint32_t i = 0; i < 3; i++)
    settings->arguments[i] = settings->arguments_compat[i] = 8 * i;
  settings->compat_mask = 1u << 22;
  settings->ioctl_x32 = ~0u;
#else
  return gs_fail(err, -ENOTSUP, "the registers of this architecture are not known");
#endif
  (void)err;
  settings->ioctl = SYS_ioctl;
  settings->ioctl_compat = 54; /* of i386 and of arm */
  return 0;
}

int gs_kernel_read(struct gs_settings *settings, uint32_t *iterator, struct gs_err *err) {
  int status = read_registers(settings, err);
  if (status)
    return status;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return gs_fail(err, -errno, "%s: %s: the kernel was built without CONFIG_DEBUG_INFO_BTF", path, strerror(errno));
  struct stat about;
  size_t got = 0;
  char *data = fstat(fd, &about) ? NULL : malloc((size_t)about.st_size);
  if (!data) {
    close(fd);
    return gs_fail(err, -ENOMEM, "%s cannot be read: out of memory", path);
  }
  while (got < (size_t)about.st_size) {
    ssize_t more = read(fd, data + got, (size_t)about.st_size - got);
    if (more <= 0)
      break;
    got += (size_t)more;
  }
  close(fd);
  status = read_types(data, got, settings, iterator, err);
  free(data);
  return status;
}
