#define _GNU_SOURCE
#include "node_api.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum {
  RETRY_MS = 10,   /* between attempts to connect while the daemon's connection backlog is full */
  AWAY_MS = 10000, /* maximum wait for a daemon that was here and is away; a killed one is back within 3 s */
  AWAY_RETRY_MS = 50,
  LEAVE_MS = 1000 /* time in which a killed daemon's socket goes, once its connections have gone */
};

static int64_t now_ms(void) {
  struct timespec t;

  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Waits for events on fd until the deadline (< 0: no deadline). Returns 0 or -ETIMEDOUT. */
static int wait_for(int fd, short events, int64_t deadline) {
  for (;;) {
    int64_t left = deadline < 0 ? -1 : deadline - now_ms();
    struct pollfd p = {.fd = fd, .events = events};
    int n;

    if (deadline >= 0 && left <= 0)
      return -ETIMEDOUT;
    n = poll(&p, 1, (int)left);
    if (n > 0)
      return 0;
    if (n < 0 && errno != EINTR)
      return -errno;
  }
}

static int read_until(int fd, size_t max, int64_t deadline, char **buffer, size_t *len, struct gs_err *err) {
  size_t room = max < 65536 ? max + 2 : 65536, used = 0;
  char *text = malloc(room), *bigger;
  int code;

  if (!text)
    return gs_fail(err, -ENOMEM, "out of memory");
  for (;;) {
    ssize_t n;

    if (used + 1 == room) {
      room = room * 2 < max + 2 ? room * 2 : max + 2;
      bigger = realloc(text, room);
      if (!bigger) {
        free(text);
        return gs_fail(err, -ENOMEM, "out of memory");
      }
      text = bigger;
    }
    code = wait_for(fd, POLLIN, deadline);
    n = code ? -1 : read(fd, text + used, room - 1 - used);
    if (n < 0) {
      if (!code && (errno == EINTR || errno == EAGAIN))
        continue;
      code = code ? code : -errno;
      free(text);
      return gs_fail(err, code, "%s", code == -ETIMEDOUT ? "timed out" : strerror(-code));
    }
    if (n == 0)
      break;
    used += (size_t)n;
    if (used > max) {
      free(text);
      return gs_fail(err, -EFBIG, "more than %zu bytes", max);
    }
  }
  text[used] = '\0';
  *buffer = text;
  *len = used;
  return 0;
}

int gs_read_all(int fd, size_t max, int timeout_ms, char **buffer, size_t *len, struct gs_err *err) {
  return read_until(fd, max, timeout_ms < 0 ? -1 : now_ms() + timeout_ms, buffer, len, err);
}

/* Whether uid 0 here is not the machine's root: a rootless engine makes such a user namespace. */
static bool is_rootless(void) {
  unsigned inside, outside, count;
  FILE *map = fopen("/proc/self/uid_map", "re");
  bool found = map && fscanf(map, "%u %u %u", &inside, &outside, &count) == 3 && outside != 0;

  if (map)
    fclose(map);
  return found;
}

static int refuse_rootless(struct gs_err *err) {
  return gs_fail(err, -EPERM, "a rootless engine can give no share: start this container as root");
}

/* *pid: the daemon's, 0 where this process cannot see it. */
static int check_peer(int fd, const char *path, pid_t *pid, struct gs_err *err) {
  struct ucred peer;
  socklen_t size = sizeof peer;

  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0)
    return gs_fail(err, -errno, "%s: %s", path, strerror(errno));
  if (peer.uid != 0)
    return is_rootless() ? refuse_rootless(err)
                         : gs_fail(err, -EPERM, "%s is served by uid %u, not by root: not talking to it", path,
                                   (unsigned)peer.uid);
  *pid = peer.pid;
  return 0;
}

/* Whether a daemon has run here since the machine was started, so that it can be expected back: a killed one leaves its
 * socket, and all leave the lock next to it (gpushare/daemon/host/directories.py). Where none has run, nobody waits for one. */
static bool expected_back(const char *path, int code) {
  const char *name = strrchr(path, '/');
  char lock[PATH_MAX];
  struct stat st;

  if (code == -ECONNREFUSED)
    return lstat(path, &st) == 0 && S_ISSOCK(st.st_mode); /* else it is no daemon's */
  if (code != -ENOENT)
    return false;
  snprintf(lock, sizeof lock, "%.*sdaemon.lock", name ? (int)(name + 1 - path) : 0, path);
  return lstat(lock, &st) == 0 && S_ISREG(st.st_mode);
}

static int no_answer(const char *path, int code, int64_t waited_ms, struct gs_err *err) {
  if (waited_ms < AWAY_RETRY_MS)
    return gs_fail(err, code, "no daemon answers at %s (%s): start one with `gpushare daemon`", path, strerror(-code));
  return gs_fail(err, code,
                 "no daemon answers at %.80s (%s): waited %d.%d s for it: look why it is away, then try again", path,
                 strerror(-code), (int)(waited_ms / 1000), (int)(waited_ms / 100 % 10));
}

/* back_by: until when to wait for a daemon that is away; 0: not at all. pid: as of check_peer. */
static int dial(const char *path, int64_t deadline, int64_t back_by, pid_t *pid, struct gs_err *err) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  int64_t began = now_ms();
  int fd, code;

  if (strlen(path) >= sizeof address.sun_path)
    return gs_fail(err, -ENAMETOOLONG, "socket path %s is too long", path);
  strcpy(address.sun_path, path);
  fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0)
    return gs_fail(err, -errno, "socket: %s", strerror(errno));
  while (connect(fd, (struct sockaddr *)&address, sizeof address) < 0) {
    code = -errno;
    if (code == -EINTR)
      continue;
    if (code == -EAGAIN && now_ms() < deadline) {
      poll(NULL, 0, RETRY_MS);
      continue;
    }
    if (now_ms() < back_by && expected_back(path, code) && !is_rootless()) {
      poll(NULL, 0, AWAY_RETRY_MS);
      continue;
    }
    close(fd);
    return is_rootless() ? refuse_rootless(err) : no_answer(path, code, now_ms() - began, err);
  }
  code = check_peer(fd, path, pid, err);
  if (code) {
    close(fd);
    return code;
  }
  return fd;
}

static int send_all(int fd, struct gs_span text, int64_t deadline, struct gs_err *err) {
  while (text.len) {
    int code = wait_for(fd, POLLOUT, deadline);
    ssize_t n = code ? -1 : send(fd, text.at, text.len, MSG_NOSIGNAL);

    if (n < 0) {
      if (!code && (errno == EINTR || errno == EAGAIN))
        continue;
      code = code ? code : -errno;
      return gs_fail(err, code, "%s", strerror(-code));
    }
    text.at += n;
    text.len -= (size_t)n;
  }
  return 0;
}

static int send_request(int fd, const struct gs_call *call, int64_t deadline, struct gs_err *err) {
  char head[1024];
  size_t length = 0;
  int code, n;

  for (unsigned i = 0; i < call->nparts; i++)
    length += call->parts[i].len;
  /* HTTP/1.0: the response is not chunked and ends with the connection. */
  n = snprintf(head, sizeof head,
               "POST %s HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
               call->target, length);
  if (n < 0 || (size_t)n >= sizeof head)
    return gs_fail(err, -ENAMETOOLONG, "request target is too long");
  code = send_all(fd, (struct gs_span){head, (size_t)n}, deadline, err);
  for (unsigned i = 0; !code && i < call->nparts; i++)
    code = send_all(fd, call->parts[i], deadline, err);
  return code;
}

static int exchange(int fd, const struct gs_call *call, int64_t deadline, struct gs_reply *reply, struct gs_err *err) {
  size_t len;
  char *body;
  int code = send_request(fd, call, deadline, err);

  /* A daemon that rejects a request early (too large, peer not root) closes the connection before it has read
   * everything. Its response is still read. */
  if (code && code != -EPIPE)
    return code;
  code = read_until(fd, call->body_max + GS_LINE_MAX, deadline, &reply->buffer, &len, err);
  if (code)
    return code;
  if (!len) {
    free(reply->buffer);
    return gs_fail(err, -ECONNRESET, "it ended meanwhile: try again");
  }
  body = strstr(reply->buffer, "\r\n\r\n");
  if (!body || sscanf(reply->buffer, "HTTP/1.%*1d %3d", &reply->status) != 1) {
    free(reply->buffer);
    return gs_fail(err, -EPROTO, "what came back is not an answer of the node API");
  }
  reply->body = (struct gs_span){body + 4, len - (size_t)(body + 4 - reply->buffer)};
  return 0;
}

static int post_once(const struct gs_call *call, int64_t deadline, int64_t back_by, struct gs_reply *reply, pid_t *pid,
                     struct gs_err *err) {
  int fd = dial(call->socket, deadline, back_by, pid, err), code;
  struct gs_err cause;

  if (fd < 0)
    return fd;
  code = exchange(fd, call, deadline, reply, &cause);
  close(fd);
  if (code)
    return gs_fail(err, code, "the daemon at %.60s did not answer: %.90s", call->socket, cause.msg);
  return 0;
}

int gs_node_post(const struct gs_call *call, struct gs_reply *reply, struct gs_err *err) {
  int64_t began = now_ms(), deadline = began + call->timeout_ms, leaves_by = 0;
  int64_t back_by = began + (AWAY_MS < call->timeout_ms ? AWAY_MS : call->timeout_ms);
  unsigned ended = 0;
  pid_t pid = 0, before;
  struct gs_err last;
  int code;

  /* The daemon was killed with our request: the next one gets it too, but no third one, as it may be what kills them. A
   * daemon that is being killed may still seem to accept. */
  do {
    before = pid;
    code = post_once(call, deadline, back_by, reply, &pid, &last);
    if (code != -ECONNRESET)
      break;
    if (pid != before || !pid) {
      ended++;
      leaves_by = now_ms() + LEAVE_MS;
    }
    poll(NULL, 0, AWAY_RETRY_MS);
  } while (ended < 2 && now_ms() < leaves_by);
  if (code)
    *err = last;
  return code;
}

int gs_node_tell(const struct gs_call *call, struct gs_err *err) {
  int64_t deadline = now_ms() + call->timeout_ms;
  pid_t pid;
  int fd = dial(call->socket, deadline, 0, &pid, err), code;

  if (fd < 0)
    return fd;
  code = send_request(fd, call, deadline, err);
  close(fd);
  return code;
}

void gs_node_reason(const struct gs_reply *reply, char out[GS_LINE_MAX]) {
  struct gs_span error, message;

  if (!gs_json_is_object(reply->body) || !gs_json_member(reply->body, "error", &error) ||
      !gs_json_member(error, "message", &message) || !gs_json_line(message, out, GS_LINE_MAX))
    snprintf(out, GS_LINE_MAX, "the daemon answered status %d without a reason", reply->status);
}
