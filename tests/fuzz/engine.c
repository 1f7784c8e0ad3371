/* The simulated GPU's socket with a client that sends arbitrary data: whole messages with random numbers, fragments,
 * descriptors. */
#include <errno.h>
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/socket.h>
#include <sys/un.h>

#define main engine_main
#include "../../native/sim/engine/main.c"
#undef main

#include "fuzz.h"

enum { CLIENTS = 3 };

static struct engine engine;
static char path[] = "/tmp/fuzz-engine-XXXXXX";
static char socket_path[64];

static void clean_up(void) {
  unlink(socket_path);
  rmdir(path);
}

static void start(void) {
  struct gs_err err = {0, ""};
  char devices_asked[] = "2x1GiB",
       *arguments[] = {"gpushare-sim", "--socket", socket_path, "--devices", devices_asked, NULL};
  MUST(mkdtemp(path));
  snprintf(socket_path, sizeof socket_path, "%s/sim.sock", path);
  atexit(clean_up);
  MUST(parse(5, arguments, &engine.options, &err) == 0);
  engine.epoll = epoll_create1(EPOLL_CLOEXEC);
  engine.started = engine.lonely_since = engine_now();
  for (uint32_t i = 0; i < engine.options.hello.ndevices; i++) {
    engine.device[i].total = engine.options.hello.device[i].total_bytes;
    engine.device[i].timer = UINT64_MAX;
  }
  MUST(serve_listen(&engine, &err) == 0);
  /* they stay open, so they must exist before the rounds that count descriptors */
  MUST(pages_meetings() >= 0);
  for (uint32_t i = 0; i < engine.options.hello.ndevices; i++)
    MUST(pages_links(i) >= 0);
}

/* Handles the pending events without waiting. */
static void serve_now(void) {
  struct epoll_event events[EVENTS];
  int count;
  while ((count = epoll_wait(engine.epoll, events, EVENTS, 0)) > 0) {
    for (int i = 0; i < count; i++)
      serve_event(&engine, events[i].data.ptr);
    serve_collect();
  }
  due(&engine);
}

static int dial(void) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  snprintf(address.sun_path, sizeof address.sun_path, "%s", socket_path);
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  MUST(fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
  return fd;
}

/* Sends a message with up to three descriptors, more than any request may have. */
static void say(int fd, const void *message, size_t size, unsigned descriptors) {
  union {
    char bytes[CMSG_SPACE(3 * sizeof(int))];
    struct cmsghdr align;
  } control = {{0}};
  struct iovec part = {(void *)(uintptr_t)message, size};
  struct msghdr whole = {.msg_iov = &part, .msg_iovlen = 1};
  int given[3] = {fd, fd, fd};
  if (descriptors) {
    whole.msg_control = control.bytes;
    whole.msg_controllen = CMSG_SPACE(descriptors * sizeof(int));
    struct cmsghdr *header = CMSG_FIRSTHDR(&whole);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors * sizeof(int));
    memcpy(CMSG_DATA(header), given, descriptors * sizeof(int));
  }
  (void)sendmsg(fd, &whole, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static struct sim_reply made; /* the answer to the last SIM_BLOCK_MAKE */

/* Reads every answer to this request, overwrites a lane that came with one, and closes received descriptors. */
static void hear(int fd, uint32_t op, struct bytes *in) {
  union {
    char bytes[CMSG_SPACE(2 * sizeof(int))];
    struct cmsghdr align;
  } control;
  char text[8192];
  for (;;) {
    struct iovec part = {text, sizeof text};
    struct msghdr whole = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control};
    if (recvmsg(fd, &whole, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) <= 0)
      return;
    if (op == SIM_BLOCK_MAKE)
      memcpy(&made, text, sizeof made);
    struct cmsghdr *header = CMSG_FIRSTHDR(&whole);
    if (!header || header->cmsg_type != SCM_RIGHTS)
      continue;
    int got[2], count = (int)((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    memcpy(got, CMSG_DATA(header), (size_t)count * sizeof(int));
    if (count == 2) {
      uint64_t words[8], one = 1;
      take(in, words, sizeof words);
      (void)!pwrite(got[0], words, sizeof words, (off_t)(offsetof(struct sim_lane, reports)));
      (void)!pwrite(got[0], words + 2, sizeof words - 16, (off_t)(offsetof(struct sim_lane, report)));
      (void)!write(got[1], &one, sizeof one);
    }
    for (int i = 0; i < count; i++)
      close(got[i]);
  }
}

static unsigned descriptors_open(void) {
  unsigned count = 0;
  DIR *all = opendir("/proc/self/fd");
  while (readdir(all))
    count++;
  closedir(all);
  return count;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct bytes in = {data, size};
  int client[CLIENTS];
  static unsigned rounds;
  if (!rounds++)
    start();
  unsigned before = rounds % 64 == 2 ? descriptors_open() : 0;
  for (int i = 0; i < CLIENTS; i++)
    client[i] = dial();
  while (in.left > 0) {
    uint8_t head = take8(&in), shape = take8(&in);
    int fd = client[head % CLIENTS];
    struct sim_request request = {SIM_PROTO_MAGIC, SIM_PROTO_VERSION, (head >> 2) % (SIM_LIMIT_GET + 1),
                                  shape & 1,       take64(&in),       0};
    if (shape & 2)
      request.a %= 1u << 30;
    if (shape & 4)
      request.b = take64(&in);
    if (shape & 8)
      request.device = take32(&in);
    if (request.op == SIM_HELLO)
      request.a = 1 + request.a % 4;
    if (request.op == SIM_STOP)
      continue;
    if (request.op > SIM_BLOCK_MAKE && !(shape & 6)) {
      request.a = made.a;
      request.b = made.b;
    }
    size_t length = shape & 16 ? take8(&in) % sizeof request : sizeof request;
    say(fd, &request, length, (shape >> 5) % 4);
    serve_now();
    hear(fd, request.op, &in);
  }
  for (int i = 0; i < CLIENTS; i++)
    close(client[i]);
  serve_now();
  /* No clients are left, so their resources must be gone too. */
  for (uint32_t i = 0; i < engine.options.hello.ndevices; i++)
    MUST(engine.device[i].used == 0);
  MUST(engine.live == NULL && engine.keepers == 0);
  if (before)
    MUST(descriptors_open() == before);
  return 0;
}
