/* Says for the share that it runs in whether its memory is needed: gpushare-yield [--now | --back]
 *
 * A shell calls it at each prompt. So it asks the daemon once, without Python, and where there is nobody to say it to
 * (no share, or no daemon at the moment) it says nothing and ends with 0, unless memory is to be moved at once. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "page/gs_err.h"
#include "page/gs_wire.h"

enum {
  SAY_MS = 1000,  /* a prompt waits for it */
  MOVE_MS = 10000 /* a busy daemon answers within this time */
};

/* As gpushare/errors.py has them. */
enum { EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_REFUSED = 3, EXIT_UNREACHABLE = 4 };

static const char *const CONTAINER_DIR = "/run/gpushare/self";
static const char *const OWN_DIR = "/run/gpushare/own";

static bool has_socket(const char *dir) {
  char path[PATH_MAX];
  struct stat file;
  return snprintf(path, sizeof path, "%s/grant.sock", dir) < (int)sizeof path && stat(path, &file) == 0 &&
         S_ISSOCK(file.st_mode);
}

/* The grant's directory; NULL: there is no share. As the interposer finds it: a container's first, then the one that
 * the environment names, unless this process has become another user, who reaches it in root's mount namespace only. */
static const char *find_share(void) {
  struct stat file;
  if (stat(CONTAINER_DIR, &file) == 0 && S_ISDIR(file.st_mode))
    return has_socket(CONTAINER_DIR) ? CONTAINER_DIR : NULL;
  const char *named = getenv("GPUSHARE_GRANT_DIR");
  if (named && named[0] == '/' && has_socket(named))
    return named;
  return has_socket(OWN_DIR) ? OWN_DIR : NULL;
}

/* Returns the connection, or a negative errno. */
static int connect_to(const char *dir, int timeout_ms, struct gs_err *err) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  struct timeval timeout = {timeout_ms / 1000, timeout_ms % 1000 * 1000};
  /* reached through the directory: a socket's path has at most 107 bytes */
  int at = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
  int fd = at < 0 ? -1 : socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd < 0)
    return gs_fail(err, -errno, "%.100s cannot be opened: %s", dir, strerror(errno));
  snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/grant.sock", at);
  if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout) == 0 &&
      setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout) == 0 &&
      connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
    return fd;
  return gs_fail(err, -errno, "the gpushare daemon cannot be reached at %.100s/grant.sock: %s", dir, strerror(errno));
}

static int ask(const char *dir, uint32_t what, int timeout_ms, struct gs_join_reply *reply, struct gs_err *err) {
  struct gs_join_request request = {GS_YIELD_MAGIC, GS_WIRE_VERSION, what, 0};
  int fd = connect_to(dir, timeout_ms, err);
  if (fd < 0)
    return fd;
  ssize_t got = send(fd, &request, sizeof request, MSG_NOSIGNAL);
  if (got == (ssize_t)sizeof request)
    do
      got = recv(fd, reply, sizeof *reply, 0);
    while (got < 0 && errno == EINTR);
  if (got < 0)
    return gs_fail(err, -errno, "the gpushare daemon did not answer: %s", strerror(errno));
  if (got == 0)
    return gs_fail(err, -ECONNRESET, "the gpushare daemon closed the connection");
  if (got != (ssize_t)sizeof *reply || reply->magic != GS_JOIN_MAGIC || reply->version != GS_WIRE_VERSION)
    return gs_fail(err, -EPROTO, "what answers at grant.sock is no gpushare daemon of this version");
  reply->message[sizeof reply->message - 1] = 0;
  return 0;
}

static int usage(const char *word) {
  fprintf(stderr, "gpushare: %.80s: give nothing, --now or --back\n", word);
  return EXIT_USAGE;
}

int main(int argc, char **argv) {
  uint32_t what = GS_YIELD_IDLE;
  if (argc > 2)
    return usage(argv[2]);
  if (argc == 2 && strcmp(argv[1], "--now") == 0)
    what = GS_YIELD_NOW;
  else if (argc == 2 && strcmp(argv[1], "--back") == 0)
    what = GS_YIELD_BACK;
  else if (argc == 2)
    return usage(argv[1]);

  const char *dir = find_share();
  if (!dir)
    return 0;
  struct gs_join_reply reply;
  struct gs_err err = {0};
  int rc = ask(dir, what, what == GS_YIELD_IDLE ? SAY_MS : MOVE_MS, &reply, &err);
  if (rc < 0 && what == GS_YIELD_IDLE && rc != -EPROTO)
    return 0; /* a daemon that is away lends nothing */
  if (rc < 0) {
    fprintf(stderr, "gpushare: %s\n", err.msg);
    return rc == -EPROTO ? EXIT_FAILED : EXIT_UNREACHABLE;
  }
  if (reply.error == GS_JOIN_OK)
    return 0;
  fprintf(stderr, "gpushare: %s\n", reply.message[0] ? reply.message : "refused, and no reason given");
  return reply.error == GS_JOIN_VERSION ? EXIT_FAILED : EXIT_REFUSED;
}
