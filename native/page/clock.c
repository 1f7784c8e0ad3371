/* The kernel's CLOCK_MONOTONIC, read without libc. */
#include <elf.h>
#include <link.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <time.h>

#include "page/gs_clock.h"

typedef int (*reader)(clockid_t clock, struct timespec *now);

#if defined(__x86_64__)
#define VDSO_READER "__vdso_clock_gettime"

static long call(long number, long a, long b, long c, long d) {
  long result = number;
  register long r10 __asm__("r10") = d;
  __asm__ volatile("syscall" : "+a"(result) : "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
  return result;
}
#elif defined(__aarch64__)
#define VDSO_READER "__kernel_clock_gettime"

static long call(long number, long a, long b, long c, long d) {
  register long x8 __asm__("x8") = number;
  register long x0 __asm__("x0") = a;
  register long x1 __asm__("x1") = b;
  register long x2 __asm__("x2") = c;
  register long x3 __asm__("x3") = d;
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
  return x0;
}
#else
#error no system calls for this machine
#endif

static int by_call(clockid_t clock, struct timespec *now) {
  return (int)call(SYS_clock_gettime, clock, (long)now, 0, 0);
}

/* ---- the vDSO: the kernel's code in every process, which reads the clock without a system call ------------------- */

struct vdso {
  const ElfW(Sym) * symbols;
  const char *names;
  const uint32_t *hash;     /* DT_HASH; NULL: there is none */
  const uint32_t *gnu_hash; /* DT_GNU_HASH, which newer kernels have alone */
};

static uint32_t symbol_count(const struct vdso *vdso) {
  if (vdso->hash)
    return vdso->hash[1];
  if (vdso->gnu_hash == NULL)
    return 0;
  uint32_t nbuckets = vdso->gnu_hash[0], first = vdso->gnu_hash[1], words = vdso->gnu_hash[2], last = 0;
  const uint32_t *buckets = vdso->gnu_hash + 4 + words * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
  const uint32_t *chain = buckets + nbuckets;
  for (uint32_t i = 0; i < nbuckets; i++)
    last = buckets[i] > last ? buckets[i] : last;
  if (last < first)
    return 0;
  while ((chain[last - first] & 1) == 0) /* the lowest bit ends a chain */
    last++;
  return last + 1;
}

static reader find(void) {
  const char *base = (const char *)getauxval(AT_SYSINFO_EHDR); /* NOLINT(performance-no-int-to-ptr) */
  struct vdso vdso = {0};
  if (base == NULL)
    return by_call;
  const ElfW(Ehdr) *header = (const void *)base;
  const ElfW(Phdr) *part = (const void *)(base + header->e_phoff);
  const ElfW(Dyn) *entry = NULL;
  const char *at = base; /* what addresses in it are relative to */
  for (int i = 0; i < header->e_phnum; i++) {
    if (part[i].p_type == PT_LOAD)
      at = base + part[i].p_offset - part[i].p_vaddr;
    else if (part[i].p_type == PT_DYNAMIC)
      entry = (const void *)(base + part[i].p_offset);
  }
  for (; entry && entry->d_tag != DT_NULL; entry++) {
    const void *where = at + entry->d_un.d_ptr;
    if (entry->d_tag == DT_SYMTAB)
      vdso.symbols = where;
    else if (entry->d_tag == DT_STRTAB)
      vdso.names = where;
    else if (entry->d_tag == DT_HASH)
      vdso.hash = where;
    else if (entry->d_tag == DT_GNU_HASH)
      vdso.gnu_hash = where;
  }
  for (uint32_t i = 0, count = vdso.symbols && vdso.names ? symbol_count(&vdso) : 0; i < count; i++)
    if (vdso.symbols[i].st_shndx != SHN_UNDEF && strcmp(vdso.names + vdso.symbols[i].st_name, VDSO_READER) == 0)
      return (reader)(uintptr_t)(at + vdso.symbols[i].st_value);
  return by_call;
}

uint64_t gs_clock_own(void) {
  static reader known;
  struct timespec now = {0};
  reader read = __atomic_load_n(&known, __ATOMIC_RELAXED);
  if (read == NULL) {
    read = find();
    __atomic_store_n(&known, read, __ATOMIC_RELAXED);
  }
  if (read(CLOCK_MONOTONIC, &now) != 0)
    by_call(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void gs_clock_sleep(uint64_t until_ns) {
  struct timespec until = {(time_t)(until_ns / 1000000000u), (long)(until_ns % 1000000000u)};
  call(SYS_clock_nanosleep, CLOCK_MONOTONIC, TIMER_ABSTIME, (long)&until, 0);
}
