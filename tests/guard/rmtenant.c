/* A process that issues the ioctls of NVIDIA's resource manager to a terminal, which stands in for the driver's control
 * node: rmtenant DEVICE. It reads one command per line and answers each with one line.
 *
 * The test's layout gives the driver's ioctls the numbers of TCSETS2 and similar ioctls of a terminal, which accept any
 * struct, return 0 and write nothing. The status already in the struct is therefore the driver's answer; the command
 * gives it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct nvos64 {
  uint32_t root, parent, object, class;
  uint64_t parameters, rights;
  uint32_t size, flags, status, pad;
};
struct nvos00 {
  uint32_t root, parent, object, status;
};
struct nvos55 {
  uint32_t client, parent, object, source_client, source, flags, status;
};
struct xfer {
  uint32_t number, size;
  uint64_t at;
};
struct memory {
  uint32_t words[16];
  uint64_t size;
  uint32_t more[16];
};
struct heap {
  uint32_t root, parent, function, space, pad, status, pads[4];
  uint32_t unused, handle, type, flags, height, pitch, attributes_tiled, pad2[5];
  uint64_t size, alignment;
  uint32_t rest[20];
};

enum {
  ALLOC = 0x402C542B, /* TCSETS2 */
  FREE = 0x402C542C,  /* TCSETSW2 */
  HEAP = 0x402C542D,  /* TCSETSF2 */
  DUP = 0x5402,       /* TCSETS */
  XFER = 0x5403,      /* TCSETSW */
  OTHER = 0x4030584C,
  NOBODY = 0x4030582B /* an allocation's number, unknown to a terminal */
};
enum { PAGE = 4096 };

static int device;

static int ask(unsigned long cmd, void *at) { return ioctl(device, cmd, at) ? errno : 0; }

static int alloc(unsigned long cmd, uint32_t client, uint32_t object, uint64_t size, uint32_t status) {
  struct memory memory = {.size = size};
  struct nvos64 all = {client, client + 1, object, 0x40, (uintptr_t)&memory, 0, 128, 0, status, 0};
  return ask(cmd, &all);
}

struct racer {
  pthread_t thread;
  uint32_t client, first, count;
  uint64_t size;
};

static void *race(void *with) {
  struct racer *one = with;
  for (uint32_t i = 0; i < one->count; i++)
    alloc(ALLOC, one->client, one->first + i, one->size, 0);
  return NULL;
}

/* Threads that allocate at the same time, each its own objects. */
static int threads(uint32_t count, uint32_t each, uint64_t size) {
  struct racer all[64];
  for (uint32_t i = 0; i < count && i < 64; i++) {
    all[i] = (struct racer){.client = 1, .first = 1000 + i * each, .count = each, .size = size};
    if (pthread_create(&all[i].thread, NULL, race, &all[i]))
      return errno;
  }
  for (uint32_t i = 0; i < count && i < 64; i++)
    pthread_join(all[i].thread, NULL);
  return 0;
}

/* The end of the struct lies on a missing page (userfaultfd): the driver faults on it and waits until this thread has
 * changed what the process asks for. */
struct changer {
  int fd;
  char *page;
  struct nvos64 *all;
  struct memory *memory;
  uint64_t size;
  uint32_t class;
};

static void *change(void *with) {
  struct changer *to = with;
  struct uffd_msg message;
  struct pollfd poller = {.fd = to->fd, .events = POLLIN};
  poll(&poller, 1, -1);
  if (read(to->fd, &message, sizeof message) != sizeof message)
    abort();
  to->memory->size = to->size;
  to->all->class = to->class;
  struct uffdio_zeropage zero = {.range = {(uintptr_t)to->page, PAGE}};
  if (ioctl(to->fd, UFFDIO_ZEROPAGE, &zero))
    abort();
  return NULL;
}

static int changed(uint32_t object, uint64_t before, uint64_t after, uint32_t class) {
  char *pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  struct memory *memory = calloc(1, sizeof *memory);
  struct nvos64 *all = (void *)(pages + PAGE - 40);
  struct changer to = {(int)syscall(SYS_userfaultfd, O_CLOEXEC), pages + PAGE, all, memory, after, class};
  struct uffdio_api api = {.api = UFFD_API};
  struct uffdio_register reg = {.range = {(uintptr_t)to.page, PAGE}, .mode = UFFDIO_REGISTER_MODE_MISSING};
  pthread_t thread;
  if (to.fd < 0 || ioctl(to.fd, UFFDIO_API, &api) || ioctl(to.fd, UFFDIO_REGISTER, &reg))
    return errno;
  memory->size = before;
  all->root = 1, all->parent = 2, all->object = object, all->class = 0x40;
  all->parameters = (uintptr_t)memory;
  if (pthread_create(&thread, NULL, change, &to))
    return errno;
  int status = ask(ALLOC, all);
  pthread_join(thread, NULL);
  close(to.fd);
  munmap(pages, 2 * PAGE);
  return status;
}

/* Parameters on an untouched page of a file: they cannot be read before the driver has faulted it in. */
static int late(uint32_t object, uint64_t size) {
  int fd = memfd_create("parameters", MFD_CLOEXEC);
  struct memory memory = {.size = size};
  struct nvos64 all = {1, 2, object, 0x40, 0, 0, 128, 0, 0, 0};
  if (fd < 0 || ftruncate(fd, PAGE))
    return errno;
  char *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
  all.parameters = (uintptr_t)(page + 256);
  if (pwrite(fd, &all, sizeof all, 0) < 0 || pwrite(fd, &memory, sizeof memory, 256) < 0)
    return errno;
  return ask(ALLOC, page);
}

/* CPU time per call in ns, over `count` calls. what: 0 getppid, 1 another ioctl, 2 an allocation that is refused, 3 one
 * that is not. */
static int times(uint64_t count, int what) {
  struct memory memory = {.size = 4096};
  struct nvos64 all = {1, 2, 10, 0x40, (uintptr_t)&memory, 0, 128, 0, 0, 0};
  struct timespec from, to;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
  for (uint64_t i = 0; i < count; i++) {
    if (!what)
      syscall(SYS_getppid);
    else
      ioctl(device, what == 1 ? OTHER : what == 2 ? NOBODY : ALLOC, &all);
  }
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
  return (int)(((to.tv_sec - from.tv_sec) * 1000000000LL + to.tv_nsec - from.tv_nsec) / (int64_t)count);
}

/* CPU time in ns of one open and close of a file, over `count` of them; -1 if an open does not end with errno `wanted`.
 */
static int opens(uint64_t count, int wanted, const char *path) {
  struct timespec from, to;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
  for (uint64_t i = 0; i < count; i++) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if ((fd < 0 ? errno : 0) != wanted)
      return -1;
    if (fd >= 0)
      close(fd);
  }
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
  return (int)(((to.tv_sec - from.tv_sec) * 1000000000LL + to.tv_nsec - from.tv_nsec) / (int64_t)count);
}

/* A message with a descriptor. */
struct message {
  char byte;
  struct iovec part;
  union {
    struct cmsghdr head;
    char room[CMSG_SPACE(sizeof(int))];
  } control;
  struct msghdr all;
};
static int sockets[2];

static void prepare(struct message *to) {
  to->part = (struct iovec){&to->byte, 1};
  to->all = (struct msghdr){.msg_iov = &to->part,
                            .msg_iovlen = 1,
                            .msg_control = to->control.room,
                            .msg_controllen = sizeof to->control.room};
}

/* Moves the device's descriptor into a socket; the process opens the device anew. */
static int sent(void) {
  struct message message = {.control.head = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
  prepare(&message);
  memcpy(CMSG_DATA(&message.control.head), &device, sizeof device);
  if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) || sendmsg(sockets[0], &message.all, 0) != 1)
    return errno;
  char path[64];
  snprintf(path, sizeof path, "%s", ttyname(device));
  close(device);
  device = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
  return device < 0 ? errno : 0;
}

static int received(void) {
  struct message message = {0};
  prepare(&message);
  if (recvmsg(sockets[1], &message.all, 0) != 1)
    return errno;
  close(device);
  memcpy(&device, CMSG_DATA(&message.control.head), sizeof device);
  return 0;
}

static int run(const char *line) {
  uint64_t a = 0, b = 0, c = 0, d = 0;
  char word[16] = "", path[64] = "";
  int pid;
  sscanf(line, "%15s %lu %lu %lu %lu", word, &a, &b, &c, &d);
  if (!strcmp(word, "alloc"))
    return alloc(ALLOC, (uint32_t)a, (uint32_t)b, c, (uint32_t)d);
  if (!strcmp(word, "refused"))
    return alloc(NOBODY, (uint32_t)a, (uint32_t)b, c, 0);
  if (!strcmp(word, "free"))
    return ask(FREE, &(struct nvos00){(uint32_t)a, (uint32_t)a + 1, (uint32_t)b, (uint32_t)c});
  if (!strcmp(word, "dup")) {
    struct nvos55 dup = {(uint32_t)a, (uint32_t)a + 1, (uint32_t)b, (uint32_t)c, (uint32_t)d, 0, 0};
    return ask(DUP, &dup);
  }
  if (!strcmp(word, "elsewhere")) { /* dup through another open file of the device, which stays open */
    int other = open(ttyname(device), O_RDWR | O_NOCTTY | O_CLOEXEC);
    struct nvos55 dup = {(uint32_t)a, (uint32_t)a + 1, (uint32_t)b, (uint32_t)c, (uint32_t)d, 0, 0};
    return ioctl(other, DUP, &dup) ? errno : 0;
  }
  if (!strcmp(word, "xfer")) {
    struct memory memory = {.size = c};
    struct nvos64 all = {(uint32_t)a, (uint32_t)a + 1, (uint32_t)b, 0x40, (uintptr_t)&memory, 0, 128, 0, 0, 0};
    struct xfer xfer[4] = {{ALLOC & 0xff, 44, (uintptr_t)&all}}; /* the terminal reads more than a struct */
    return ask(XFER, xfer);
  }
  if (!strcmp(word, "heap")) {
    struct heap heap = {.root = (uint32_t)a, .parent = (uint32_t)a + 1, .function = 2, .handle = (uint32_t)b};
    heap.size = c;
    heap.flags = (uint32_t)d;
    return ask(HEAP, &heap);
  }
  if (!strcmp(word, "tiled")) {
    struct heap heap = {.root = (uint32_t)a, .parent = (uint32_t)a + 1, .function = 6, .handle = (uint32_t)b};
    heap.height = (uint32_t)c;
    heap.pitch = (uint32_t)d;
    return ask(HEAP, &heap);
  }
  if (!strcmp(word, "heapfree")) {
    struct heap heap = {.root = (uint32_t)a, .parent = (uint32_t)a + 1, .function = 3, .handle = (uint32_t)b};
    return ask(HEAP, &heap);
  }
  if (!strcmp(word, "other")) {
    struct nvos64 all = {1, 2, (uint32_t)a, 0x3e, (uintptr_t)&(struct memory){.size = b}, 0, 128, 0, 0, 0};
    return ask(ALLOC, &all);
  }
  if (!strcmp(word, "hidden")) {
    struct nvos64 all = {1, 2, (uint32_t)a, 0x40, 8, 0, 128, 0, 0, 0};
    return ask(ALLOC, &all);
  }
  if (!strcmp(word, "changed"))
    return changed((uint32_t)a, b, c, (uint32_t)d);
  if (!strcmp(word, "late"))
    return late((uint32_t)a, b);
  if (!strcmp(word, "threads"))
    return threads((uint32_t)a, (uint32_t)b, c);
  if (!strcmp(word, "child")) { /* it keeps the descriptor and allocates nothing */
    pid = fork();
    if (pid)
      return pid;
    close(0), close(1);
    for (;;)
      pause();
  }
  if (!strcmp(word, "again")) { /* replaces the descriptor by another one of the same file */
    int other = dup(device);
    close(device);
    device = other;
    return 0;
  }
  if (!strcmp(word, "reopen")) {
    snprintf(path, sizeof path, "%s", ttyname(device));
    close(device);
    device = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
    return device < 0 ? errno : 0;
  }
  if (!strcmp(word, "close"))
    return close(device) ? errno : 0;
  if (!strcmp(word, "send"))
    return sent();
  if (!strcmp(word, "receive"))
    return received();
  if (!strcmp(word, "time"))
    return times(a, (int)b);
  if (sscanf(line, "opens %lu %lu %63s", &a, &b, path) == 3)
    return opens(a, (int)b, path);
  return -1;
}

int main(int count, char **words) {
  char line[256];
  if (count < 2 || (device = open(words[1], O_RDWR | O_NOCTTY | O_CLOEXEC)) < 0)
    return 1;
  while (fgets(line, sizeof line, stdin)) {
    printf("%d\n", run(line));
    fflush(stdout);
  }
  return 0;
}
