/* The socket: connections, requests, and the end of client processes. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "sim/engine/engine.h"

struct connection {
  struct source source;
  int fd;
  struct ucred peer;
  enum sim_role role;      /* 0 until SIM_HELLO */
  struct process *process; /* clients only; NULL after the process has ended */
  struct connection *next;
};

/* A watch is freed only after all events of one epoll_wait have been handled, because a later event may refer to it. */
struct process_watch {
  struct source source;
  struct engine *engine;
  struct process *process;
  int fd;
  struct process_watch *next;
};
struct bell_watch {
  struct source source;
  struct lane *lane;
  struct bell_watch *next;
};

static struct source listen_source = {SOURCE_LISTEN};
static int listen_fd = -1;
static ino_t listen_inode;
static struct connection *connections;
static struct process_watch *process_watches;
static struct bell_watch *bell_watches;

static bool keeps_alive(enum sim_role role) { return role == SIM_ROLE_CLIENT || role == SIM_ROLE_CONTROL; }

static void unwatch_lanes(const struct process *process, uint32_t device) {
  for (struct bell_watch *watch = bell_watches; watch; watch = watch->next)
    if (watch->lane && watch->lane->process == process && (device == SIM_MAX_DEVICES || watch->lane->device == device))
      watch->lane = NULL;
}

static void end_process(struct engine *engine, struct process *process) {
  for (struct connection *connection = connections; connection; connection = connection->next)
    if (connection->process == process)
      connection->process = NULL;
  for (struct process_watch *watch = process_watches; watch; watch = watch->next)
    if (watch->process == process)
      watch->process = NULL;
  unwatch_lanes(process, SIM_MAX_DEVICES);
  books_process_ended(engine, process);
}

static void drop(struct engine *engine, struct connection *connection) {
  struct process *process = connection->process;
  connection->process = NULL;
  close(connection->fd);
  connection->fd = -1; /* freed by serve_collect: other events of this round may still refer to it */
  if (keeps_alive(connection->role) && --engine->keepers == 0)
    engine->lonely_since = engine_now();
  connection->role = 0;
  if (process && --process->users == 0)
    end_process(engine, process);
}

/* Frees closed connections and removed watches. Call after all events of the current round have been handled. */
void serve_collect(void) {
  for (struct connection **at = &connections; *at;) {
    struct connection *connection = *at;
    if (connection->fd >= 0) {
      at = &connection->next;
      continue;
    }
    *at = connection->next;
    free(connection);
  }
  for (struct process_watch **at = &process_watches; *at;) {
    struct process_watch *watch = *at;
    if (watch->process) {
      at = &watch->next;
      continue;
    }
    *at = watch->next;
    free(watch);
  }
  for (struct bell_watch **at = &bell_watches; *at;) {
    struct bell_watch *watch = *at;
    if (watch->lane) {
      at = &watch->next;
      continue;
    }
    *at = watch->next;
    free(watch);
  }
}

static int register_process(struct engine *engine, struct connection *connection) {
  int pidfd = message_peer(connection->fd, connection->peer.pid);
  if (pidfd < 0)
    return -ESRCH;
  struct process *process = books_process(engine, connection->peer.pid, pidfd);
  if (process == NULL) {
    close(pidfd);
    return -ENOMEM;
  }
  connection->process = process;
  if (process->users++ > 0)
    return 0;
  struct process_watch *watch = calloc(1, sizeof *watch);
  if (watch == NULL)
    return -ENOMEM;
  *watch = (struct process_watch){{SOURCE_PIDFD}, engine, process, pidfd, process_watches};
  process_watches = watch;
  return engine_watch(engine, pidfd, &watch->source);
}

static int hello(struct engine *engine, struct connection *connection, uint64_t role) {
  struct sim_hello answer = engine->options.hello;
  answer.magic = SIM_PROTO_MAGIC;
  answer.version = SIM_PROTO_VERSION;
  answer.host_pid = connection->peer.pid;
  answer.engine_pid = getpid();
  if (connection->role || role < SIM_ROLE_CLIENT || role > SIM_ROLE_CONTROL) {
    answer.error = -EINVAL;
  } else {
    if (role == SIM_ROLE_CLIENT)
      answer.error = register_process(engine, connection);
    if (answer.error == 0) {
      connection->role = (enum sim_role)role;
      if (keeps_alive(connection->role))
        engine->keepers++;
    }
  }
  return message_send(connection->fd, &answer, sizeof answer, NULL, 0);
}

static int open_lane(struct engine *engine, struct process *process, uint32_t device, int fds[2]) {
  if (process->share[device].lane)
    return -EBUSY;
  struct bell_watch *watch = calloc(1, sizeof *watch);
  if (watch == NULL)
    return -ENOMEM;
  struct lane *lane;
  int error = lane_open(engine, process, device, &lane);
  if (error) {
    free(watch);
    return error;
  }
  *watch = (struct bell_watch){{SOURCE_BELL}, lane, bell_watches};
  bell_watches = watch;
  error = engine_watch(engine, lane->bell, &watch->source);
  if (error) {
    watch->lane = NULL;
    lane_close(engine, lane);
    return error;
  }
  fds[0] = lane->memfd;
  fds[1] = lane->bell;
  return 0;
}

static int client_request(struct engine *engine, struct process *process, const struct sim_request *request,
                          struct sim_reply *reply, int fds[2], int *nfds) {
  if (process == NULL)
    return -EPERM;
  const struct device *device = &engine->device[request->device];
  int error = 0;
  switch (request->op) {
    case SIM_MEM_ALLOC: return books_alloc(engine, process, request->device, request->a);
    case SIM_MEM_FREE: return books_free(engine, process, request->device, request->a);
    case SIM_LANE_OPEN:
      error = open_lane(engine, process, request->device, fds);
      *nfds = error ? 0 : 2;
      return error;
    case SIM_LANE_CLOSE:
      if (process->share[request->device].lane == NULL)
        return -EINVAL;
      unwatch_lanes(process, request->device);
      lane_close(engine, process->share[request->device].lane);
      return 0;
    case SIM_ILLEGAL: process->share[request->device].illegal++; return 0;
    default:
      reply->a = device->total;
      reply->b = device->used;
      reply->c = process->share[request->device].bytes;
      return 0;
  }
}

static int device_facts(struct engine *engine, uint32_t index, struct sim_reply *reply) {
  uint64_t now = engine_now();
  reply->a = books_busy(engine, index, now);
  reply->b = now - engine->started;
  for (const struct process *process = engine->live; process; process = process->next)
    reply->c += process->share[index].bytes > 0 || process->share[index].lane != NULL;
  return 0;
}

/* True for root and the engine's own uid, which may stop the engine or change a device. */
static bool administers(const struct connection *connection) {
  return connection->peer.uid == 0 || connection->peer.uid == geteuid();
}

static bool asks_the_device(uint32_t op) {
  return op == SIM_MEM_ALLOC || op == SIM_MEM_INFO || op == SIM_LANE_OPEN || op == SIM_DEVICE || op == SIM_PROCESSES;
}

static int answer(struct engine *engine, struct connection *connection, const struct sim_request *request, int given) {
  struct sim_reply reply = {.magic = SIM_PROTO_MAGIC};
  int fds[2] = {-1, -1}, nfds = 0, made = -1;
  blocks_settle(engine);
  if (connection->role == 0) {
    reply.error = -EPROTO;
  } else if (request->device >= engine->options.hello.ndevices) {
    reply.error = -ENODEV;
  } else if (engine->device[request->device].setting[SIM_LOST] && asks_the_device(request->op)) {
    reply.error = -EIO;
  } else {
    switch (request->op) {
      case SIM_STATS: made = books_json(engine, &reply.a); break;
      case SIM_PROCESSES: made = books_processes(engine, request->device, request->a == 0, &reply.a); break;
      case SIM_TIMES:
        reply.c = engine_now();
        reply.a = books_busy(engine, request->device, reply.c);
        reply.b = engine->device[request->device].switch_ns;
        reply.c -= engine->started;
        break;
      case SIM_DEVICE: reply.error = device_facts(engine, request->device, &reply); break;
      case SIM_FILE_PUT:
      case SIM_EVENTS_PUT:
        reply.error = request_put_file(connection->process, request, given);
        given = -1;
        break;
      case SIM_FILE_GET:
        fds[0] = books_file_get(engine, (const uint64_t[]){request->a, request->b}, &reply.a, &reply.b);
        reply.error = fds[0] < 0 ? fds[0] : 0;
        nfds = fds[0] >= 0;
        break;
      case SIM_MEETINGS_GET:
      case SIM_LINKS_GET:
        fds[0] = request->op == SIM_LINKS_GET ? pages_links(request->device) : pages_meetings();
        reply.error = fds[0] < 0 ? fds[0] : 0;
        nfds = fds[0] >= 0;
        break;
      case SIM_BLOCK_MAKE:
      case SIM_BLOCK_HOLD:
      case SIM_BLOCK_DROP:
      case SIM_BLOCK_EXPORT:
      case SIM_BLOCK_IMPORT:
      case SIM_BLOCK_SUMS:
        reply.error = request_block(engine, connection->process, request, given, &reply, &fds[0], &made);
        given = -1;
        fds[0] = made >= 0 ? made : fds[0];
        nfds = reply.error == 0 && fds[0] >= 0;
        break;
      case SIM_SETTING:
        reply.error =
            request->b == SIM_KEEP || administers(connection) ? books_setting(engine, request, &reply.a) : -EPERM;
        runlist_run(engine, request->device);
        break;
      case SIM_LIMIT_SET:
      case SIM_LIMIT_GET:
        if (request->op == SIM_LIMIT_GET || administers(connection)) {
          reply.error = request_limit(engine, request, given, &reply);
          given = -1;
        } else {
          reply.error = -EPERM;
        }
        break;
      case SIM_CHECKPOINT:
        reply.error = checkpoint_request(engine, request, given, administers(connection), connection->peer.uid, &reply);
        given = -1;
        break;
      case SIM_STOP:
        if (administers(connection))
          engine->stop = true;
        else
          reply.error = -EPERM;
        break;
      case SIM_MEM_INFO:
        if (connection->process == NULL) {
          reply.a = engine->device[request->device].total;
          reply.b = engine->device[request->device].used;
          break;
        }
        /* fall through */
      case SIM_MEM_ALLOC:
      case SIM_MEM_FREE:
      case SIM_LANE_OPEN:
      case SIM_LANE_CLOSE:
      case SIM_ILLEGAL: reply.error = client_request(engine, connection->process, request, &reply, fds, &nfds); break;
      default: reply.error = -ENOSYS;
    }
    if (request->op == SIM_STATS || request->op == SIM_PROCESSES) {
      reply.error = made < 0 ? made : 0;
      fds[0] = made;
      nfds = made >= 0;
    }
  }
  int sent = message_send(connection->fd, &reply, sizeof reply, fds, nfds);
  if (made >= 0)
    close(made);
  if (given >= 0)
    close(given);
  return sent;
}

static void serve_connection(struct engine *engine, struct connection *connection) {
  struct sim_request request;
  int given;
  if (connection->fd < 0)
    return;
  ssize_t got = message_receive(connection->fd, &request, &given);
  if (got < 0 && (errno == EAGAIN || errno == EINTR))
    return;
  bool ours = got == sizeof request && request.magic == SIM_PROTO_MAGIC && request.version == SIM_PROTO_VERSION;
  bool greets = ours && request.op == SIM_HELLO;
  if (given >= 0 && (!ours || greets))
    close(given);
  if (!ours || (greets ? hello(engine, connection, request.a) : answer(engine, connection, &request, given)) != 0)
    drop(engine, connection);
}

static void serve_accept(struct engine *engine) {
  int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0)
    return;
  struct connection *connection = calloc(1, sizeof *connection);
  socklen_t size = sizeof connection->peer;
  if (connection == NULL || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &connection->peer, &size) < 0 ||
      engine_watch(engine, fd, &connection->source) != 0) {
    free(connection);
    close(fd);
    return;
  }
  connection->source.kind = SOURCE_CONNECTION;
  connection->fd = fd;
  connection->next = connections;
  connections = connection;
}

static void serve_bell(struct engine *engine, struct bell_watch *watch) {
  uint64_t rung;
  if (watch->lane == NULL || read(watch->lane->bell, &rung, sizeof rung) < 0)
    return;
  lane_bell(engine, watch->lane);
}

void serve_event(struct engine *engine, void *data) {
  struct source *source = data;
  if (source->kind == SOURCE_LISTEN)
    serve_accept(engine);
  if (source->kind == SOURCE_CONNECTION)
    serve_connection(engine, (struct connection *)source);
  if (source->kind == SOURCE_BELL)
    serve_bell(engine, (struct bell_watch *)source);
  if (source->kind == SOURCE_PIDFD) {
    struct process *process = ((struct process_watch *)source)->process;
    if (process)
      end_process(engine, process);
  }
}

int serve_listen(struct engine *engine, struct gs_err *err) {
  const char *path = engine->options.socket;
  struct sockaddr_un address;
  int error = message_address(path, &address, err);
  if (error)
    return error;
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd < 0)
    return gs_fail(err, -errno, "socket: %s", strerror(errno));
  if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0) {
    close(fd);
    return gs_fail(err, -EADDRINUSE, "another simulator answers at %s: stop it or use another --socket", path);
  }
  close(fd);
  fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  unlink(path); /* nobody answered: the socket is left over from a killed engine */
  struct stat status;
  /* Access to the device is controlled by the permissions of the directory. */
  if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) < 0 || chmod(path, 0666) < 0 ||
      listen(fd, 1024) < 0 || stat(path, &status) < 0) {
    error = gs_fail(err, -errno, "cannot listen on %s: %s", path, strerror(errno));
    if (fd >= 0)
      close(fd);
    return error;
  }
  listen_fd = fd;
  listen_inode = status.st_ino;
  return engine_watch(engine, fd, &listen_source);
}

void serve_close(struct engine *engine) {
  struct stat status;
  if (stat(engine->options.socket, &status) == 0 && status.st_ino == listen_inode)
    unlink(engine->options.socket);
  close(listen_fd);
}
