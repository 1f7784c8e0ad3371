/* The engine of the simulated GPU: one thread with one epoll loop. It keeps the accounts of device memory and allocates
 * device time to lanes.
 * books.c: processes, bytes, time. blocks.c: shared memory. limits.c: memory limits of cgroups. checkpoint.c: processes
 * that are off the devices for a while. runlist.c: which lane has the device at which time. serve.c: the socket. main.c:
 * options and the loop. */
#ifndef ENGINE_H
#define ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "page/gs_err.h"
#include "sim/wire/sim_proto.h"

enum { ENGINE_ENDED_KEPT = 1024 }; /* ended processes that stay in the accounts */

struct options {
  struct sim_hello hello; /* sent to clients; holds the devices too */
  const char *socket;
  uint32_t described; /* length of the longest --nvlink, --pcie or --numa: number of devices they describe */
};

struct process;
struct limit;

/* The lane of one process on one device: the page over which it receives device time. */
struct lane {
  uint64_t id;
  struct process *process;
  uint32_t device;
  struct sim_lane *page;
  int memfd, bell;
  struct sim_report report; /* the last complete report, extrapolated in time */
  uint64_t reports_read;    /* sim_lane.reports when report was read */
  uint64_t busy_ns;         /* device time executed and accounted so far; never decreases */
  bool queued;              /* waiting in the run list */
  struct lane *next;        /* in the run list */
};

enum shared_file { SHARED_MEMORY, SHARED_EVENTS, SHARED_FILES };

struct share {
  uint64_t bytes, peak_bytes;
  uint64_t busy_ns;                /* of closed lanes */
  uint64_t illegal;                /* accesses to memory that was not there */
  uint64_t copied[SIM_DIRECTIONS]; /* of closed lanes */
  struct lane *lane;
  int file[SHARED_FILES]; /* for IPC; -1: none */
  uint64_t secret[SHARED_FILES][2];
};

struct process {
  pid_t pid;
  int pidfd;      /* -1 once dead */
  unsigned users; /* connections */
  bool alive;
  struct limit *limit; /* found by the last lookup; NULL: none */
  enum sim_state state;
  uint64_t saved[SIM_MAX_DEVICES]; /* bytes that it had on each device when it was checkpointed */
  struct share share[SIM_MAX_DEVICES];
  struct process *next;
};

struct device {
  uint64_t total, used, peak;
  uint64_t unowned;           /* part of used: blocks of ended processes that only a descriptor keeps */
  uint64_t forgotten_busy_ns; /* of processes removed from the accounts */
  uint64_t setting[SIM_SETTINGS];
  /* the run list */
  struct lane *current; /* holds an open interval */
  uint64_t slice_end;   /* of the current lane */
  bool contended;       /* another lane has waited since the last decision */
  uint64_t free_at;     /* end of the last closed interval */
  uint64_t last_id;     /* lane id of the last closed interval: if it takes the device again, no switch is charged */
  uint64_t switches, switch_ns; /* switches between lanes so far, and the device time lost to them */
  struct lane *queue;           /* lanes with work, in round-robin order */
  uint64_t timer;               /* time of the next decision; UINT64_MAX: none */
};

struct engine {
  struct options options;
  struct device device[SIM_MAX_DEVICES];
  struct process *live, *ended; /* ended: newest first */
  struct limit *limits;
  unsigned nended;
  uint64_t started;
  uint64_t lanes; /* opened so far */
  int epoll;
  bool stop;
  unsigned keepers;      /* client and control connections: they keep the engine alive */
  uint64_t lonely_since; /* when keepers became 0 */
};

uint64_t engine_now(void); /* CLOCK_MONOTONIC, ns */

/* books.c */
/* the live process with that pid, or a new one; takes ownership of pidfd */
struct process *books_process(struct engine *engine, pid_t pid, int pidfd);
void books_process_ended(struct engine *engine, struct process *process); /* closes its lanes and returns its memory */
/* Charge and release device memory. -ENOMEM: the device is full; -EINVAL: more than the process holds. */
int books_alloc(struct engine *engine, struct process *process, uint32_t device, uint64_t bytes);
int books_free(struct engine *engine, struct process *process, uint32_t device, uint64_t bytes);
int books_file_put(struct process *process, uint32_t device, enum shared_file which, const uint64_t secret[2],
                   int file); /* takes ownership of file */
/* The file of a live process, or -ENOENT. The descriptor stays owned by books.c. */
int books_file_get(const struct engine *engine, const uint64_t secret[2], uint64_t *device, uint64_t *pid);
/* Device time executed up to now, in ns, by all processes so far and by one process. */
uint64_t books_busy(struct engine *engine, uint32_t device, uint64_t now);
uint64_t books_process_busy(const struct process *process, uint32_t device, uint64_t now);
int books_json(struct engine *engine, uint64_t *bytes); /* a memfd, or a negative errno */
/* A memfd, or a negative errno. ended: includes ended processes. */
int books_processes(struct engine *engine, uint32_t device, bool ended, uint64_t *rows);
/* A memfd that pages.c owns, or a negative errno. */
int pages_meetings(void);
int pages_links(uint32_t device);
/* Reads a setting an administrator can change, and sets it first unless the request has SIM_KEEP. */
int books_setting(struct engine *engine, const struct sim_request *request, uint64_t *value);

/* checkpoint.c: -errno, see sim_proto.h. may_all: the caller may do this to any process; otherwise to those of uid.
 * Takes ownership of pidfd. */
int checkpoint_request(struct engine *engine, const struct sim_request *request, int pidfd, bool may_all, uid_t uid,
                       struct sim_reply *reply);

/* blocks.c: memory that more than one holder can keep. All errors are negative errnos; -ENOENT: no such block, or this
 * process may not hold it. */
/* Bytes that the process has been charged become a block, held once by the process. reply: id and key. Takes ownership
 * of file (-1: none) unless it fails. */
int block_make(struct engine *engine, struct process *process, const struct sim_request *request, int file,
               struct sim_reply *reply);
/* Adds a hold. The process or the block's creator must already have one. */
int block_hold(struct engine *engine, struct process *process, uint64_t id, uint64_t key);
/* Removes a hold; *left: 1 if anything still keeps the block. */
int block_drop(struct engine *engine, struct process *process, uint64_t id, uint64_t *left);
/* A descriptor that keeps the block; the caller owns it. */
int block_export(const struct process *process, uint64_t id);
/* Adds a hold on the block that the descriptor keeps. Returns the block's file, which the block still owns; reply: id
 * and key. */
int block_import(struct engine *engine, struct process *process, int given, struct sim_reply *reply);
/* On one device: bytes of blocks that the process is charged for, and the number of its holds. */
void blocks_sums(const struct process *process, uint32_t device, struct sim_reply *reply);
void blocks_settle(struct engine *engine); /* ends the blocks that nothing keeps any more */
/* Removes the holds of a process. Each block charged to it is charged to the next holder. */
void blocks_process_ended(struct engine *engine, const struct process *process);

/* limits.c. limits_room: -ENOMEM if `bytes` more would exceed the limit of the process's cgroup. request_limit: `given`
 * is always consumed. */
int limits_room(struct engine *engine, struct process *process, uint32_t device, uint64_t bytes);
int request_limit(struct engine *engine, const struct sim_request *request, int given, struct sim_reply *reply);

/* runlist.c */
/* 0 or a negative errno. Closing a lane drops its queued work. */
int lane_open(struct engine *engine, struct process *process, uint32_t device, struct lane **lane);
void lane_close(struct engine *engine, struct lane *lane);
void lane_bell(struct engine *engine, struct lane *lane); /* the client may have new work */
void lane_lock(const struct lane *lane, bool locked);     /* the process's calls wait, or no longer */
bool lane_works(struct lane *lane, uint64_t now);         /* it has kernels that are not done */
uint64_t lane_busy(struct lane *lane, uint64_t now);      /* device time executed up to now */
/* Makes the decisions that are due and sets the device's timer. */
void runlist_run(struct engine *engine, uint32_t device);

/* messages.c. message_send: one message with nfds descriptors, at most 2; 0 or -1. message_peer: a pidfd of
 * the peer, or a negative errno. message_receive: one request with at most one descriptor (*given is -1 if there is
 * none); returns the result of recvmsg. */
int message_send(int fd, const void *data, size_t bytes, const int *fds, int nfds);
int message_peer(int fd, pid_t pid);
ssize_t message_receive(int fd, struct sim_request *request, int *given);
struct sockaddr_un;
/* -ENAMETOOLONG if the path does not fit in a socket address. */
int message_address(const char *path, struct sockaddr_un *address, struct gs_err *err);

/* given.c. given: the descriptor from the request, or -1; always consumed. process NULL: not a client, -EPERM.
 * request_block: the answer's descriptor is in *shown, which stays owned by the block, or in *made. 0 or a negative
 * errno. */
int request_put_file(struct process *process, const struct sim_request *request, int given);
int request_block(struct engine *engine, struct process *process, const struct sim_request *request, int given,
                  struct sim_reply *reply, int *shown, int *made);

/* serve.c */
/* Binds the socket; a negative errno if another engine answers on it. serve_event handles one epoll event. */
int serve_listen(struct engine *engine, struct gs_err *err);
void serve_event(struct engine *engine, void *source);
void serve_collect(void); /* frees closed connections; called after each round of events */
void serve_close(struct engine *engine);

/* First member of each object that an epoll event points to. */
enum source_kind { SOURCE_LISTEN, SOURCE_TIMER, SOURCE_SIGNAL, SOURCE_CONNECTION, SOURCE_PIDFD, SOURCE_BELL };
struct source {
  enum source_kind kind;
};
/* Adds fd to the epoll set; events carry source, which must outlive the registration. 0 or a negative errno. */
int engine_watch(struct engine *engine, int fd, struct source *source);

#endif
