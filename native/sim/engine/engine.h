/* The engine of the simulated GPU: one thread, one epoll loop. It owns the books of device memory and hands out device
 * time. books.c: processes, bytes, time. runlist.c: which lane has the device when. serve.c: the socket. main.c:
 * options, the loop. */
#ifndef ENGINE_H
#define ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "page/gs_err.h"
#include "sim/wire/sim_proto.h"

enum { ENGINE_ENDED_KEPT = 1024 }; /* ended processes that stay in the books */

struct options {
  struct sim_hello hello; /* what clients are told; devices included */
  const char *socket;
};

struct process;

/* One process's lane on one device. */
struct lane {
  uint64_t id;
  struct process *process;
  uint32_t device;
  struct sim_lane *page;
  int memfd, bell;
  struct sim_report report; /* the last one read whole, moved on in time */
  uint64_t reports_read;    /* sim_lane.reports as of then */
  uint64_t busy_ns;         /* device time executed so far, as booked; never falls */
  bool queued;              /* waits in the run list */
  struct lane *next;        /* in the run list */
};

enum shared_file { SHARED_MEMORY, SHARED_EVENTS, SHARED_FILES };

struct share {
  uint64_t bytes, peak_bytes;
  uint64_t busy_ns; /* of lanes that are closed */
  struct lane *lane;
  int file[SHARED_FILES]; /* for IPC; -1 none */
  uint64_t secret[SHARED_FILES][2];
};

struct process {
  pid_t pid;
  int pidfd;      /* -1 once dead */
  unsigned users; /* connections */
  bool alive;
  struct share share[SIM_MAX_DEVICES];
  struct process *next;
};

struct device {
  uint64_t total, used, peak;
  uint64_t forgotten_busy_ns; /* of processes that have left the books */
  uint64_t setting[SIM_SETTINGS];
  /* run list */
  struct lane *current;         /* holds an open interval */
  uint64_t slice_end;           /* of the current lane */
  bool contended;               /* somebody has been waiting since the last decision */
  uint64_t free_at;             /* end of the last closed interval */
  uint64_t last_id;             /* whose that was: taking the device again costs it no switch */
  uint64_t switches, switch_ns; /* so far: from one lane to another, and the time that kept the device from work */
  struct lane *queue;           /* lanes with work, in turn */
  uint64_t timer;               /* next decision, UINT64_MAX none */
};

struct engine {
  struct options options;
  struct device device[SIM_MAX_DEVICES];
  struct process *live, *ended; /* ended: newest first */
  unsigned nended;
  uint64_t started;
  uint64_t lanes; /* opened so far */
  int epoll;
  bool stop;
  unsigned keepers;      /* client and control connections */
  uint64_t lonely_since; /* when keepers became 0 */
};

uint64_t engine_now(void);

/* books.c */
/* the live one of that pid, or a new one; takes pidfd */
struct process *books_process(struct engine *engine, pid_t pid, int pidfd);
void books_process_ended(struct engine *engine, struct process *process); /* closes its lanes, gives back its bytes */
int books_alloc(struct engine *engine, struct process *process, uint32_t device, uint64_t bytes);
int books_free(struct engine *engine, struct process *process, uint32_t device, uint64_t bytes);
int books_file_put(struct process *process, uint32_t device, enum shared_file which, const uint64_t secret[2],
                   int file); /* takes file */
/* The file of a live process, which stays the books', or -ENOENT. */
int books_file_get(const struct engine *engine, const uint64_t secret[2], uint64_t *device, uint64_t *pid);
uint64_t books_busy(struct engine *engine, uint32_t device, uint64_t now);
uint64_t books_process_busy(const struct process *process, uint32_t device, uint64_t now);
int books_json(struct engine *engine, uint64_t *bytes);                      /* a memfd, or a negative errno */
int books_processes(struct engine *engine, uint32_t device, uint64_t *rows); /* a memfd, or a negative errno */
int books_meetings(void); /* a memfd that stays the books', or a negative errno */
/* Reads, or sets and reads, what an administrator can set. */
int books_setting(struct engine *engine, const struct sim_request *request, uint64_t *value);

/* runlist.c */
int lane_open(struct engine *engine, struct process *process, uint32_t device, struct lane **lane);
void lane_close(struct engine *engine, struct lane *lane);
void lane_bell(struct engine *engine, struct lane *lane); /* there may be work */
uint64_t lane_busy(struct lane *lane, uint64_t now);      /* device time executed by then */
void runlist_run(struct engine *engine, uint32_t device); /* decides what is due; sets the device's timer */

/* messages.c. One message with up to nfds descriptors: 0 or a negative errno. Who a connection is of: a pidfd or a
 * negative errno. One request with at most one descriptor, -1 where none came: what recvmsg says. */
int message_send(int fd, const void *data, size_t bytes, const int *fds, int nfds);
int message_peer(int fd, pid_t pid);
ssize_t message_receive(int fd, struct sim_request *request, int *given);
struct sockaddr_un;
int message_address(const char *path, struct sockaddr_un *address, struct gs_err *err);

/* serve.c */
int serve_listen(struct engine *engine, struct gs_err *err);
void serve_event(struct engine *engine, void *source);
void serve_collect(void); /* after each round of events */
void serve_close(struct engine *engine);

/* What an epoll event points to. */
enum source_kind { SOURCE_LISTEN, SOURCE_TIMER, SOURCE_SIGNAL, SOURCE_CONNECTION, SOURCE_PIDFD, SOURCE_BELL };
struct source {
  enum source_kind kind;
};
int engine_watch(struct engine *engine, int fd, struct source *source);

#endif
