/* gpushare-sim: the simulated GPU. It stands in for hardware, so it keeps running when the daemon that started it
 * ends. */
#define _GNU_SOURCE
#include <errno.h>
#include <getopt.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "sim/engine/engine.h"

#define LONELY_NS 10000000000ull /* exits after this long without a client or control connection */
#define EVENTS 256

static int number(const char *name, const char *text, uint64_t most, uint64_t *out, struct gs_err *err) {
  char *end;
  errno = 0;
  unsigned long long value = strtoull(text, &end, 10);
  if (errno || *text < '0' || *text > '9' || *end || value > most)
    return gs_fail(err, -EINVAL, "--%s %s is not a number from 0 to %lu", name, text, most);
  *out = value;
  return 0;
}

/* In GB/s, and decimals of it; the result is in bytes per us. */
static int rate(const char *name, const char *text, uint64_t *out, struct gs_err *err) {
  char *end;
  double value = strtod(text, &end);
  if (*text < '0' || *text > '9' || *end || !(value >= 0.001 && value <= 10000))
    return gs_fail(err, -EINVAL, "--%s %s is not a rate from 0.001 to 10000 GB/s", name, text);
  *out = (uint64_t)(value * 1000 + 0.5);
  return 0;
}

static int size_of(const char *text, uint64_t *out) {
  static const struct {
    const char *name;
    int shift;
  } units[] = {{"", 0},    {"Ki", 10},  {"KiB", 10}, {"Mi", 20}, {"MiB", 20},
               {"Gi", 30}, {"GiB", 30}, {"Ti", 40},  {"TiB", 40}};
  char *end;
  errno = 0;
  unsigned long long value = strtoull(text, &end, 10);
  if (errno || *text < '0' || *text > '9')
    return -EINVAL;
  for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
    if (strcmp(end, units[i].name) == 0 && value > 0 && value <= (16ull << 40) >> units[i].shift) {
      *out = value << units[i].shift;
      return 0;
    }
  return -EINVAL;
}

static int add_device(struct sim_hello *hello, uint64_t bytes) {
  /* Fixed bytes plus the device number, so that a simulated device keeps its UUID across restarts. */
  static const uint8_t uuid[16] = {0x67, 0x70, 0x75, 0x73, 0x68, 0x41, 0x72, 0x65, 0xad, 0x73, 0x69, 0x6d, 0, 0, 0, 0};
  if (hello->ndevices == SIM_MAX_DEVICES)
    return -E2BIG;
  uint32_t index = hello->ndevices++;
  struct sim_device_info *info = &hello->device[index];
  memcpy(info->uuid, uuid, sizeof uuid);
  info->uuid[15] = (uint8_t)(index + 1);
  info->total_bytes = bytes;
  snprintf(info->name, sizeof info->name, "gpushare simulated GPU");
  info->pci_bus = index + 1;
  return 0;
}

enum which {
  SOCKET = 1,
  DEVICES,
  KERNEL,
  CONTEXT,
  SLICE,
  SWITCH,
  PREEMPT,
  LAUNCH,
  EVENT,
  QUERY,
  DEPTH,
  GBPS,
  NVLINK,
  PCIE,
  NUMA,
  DRIVER,
  NODES,
  PAGEABLE,
  PIN,
  VMM
};

/* Parses "2x16GiB", "16GiB" or "1x16GiB,1x8GiB". */
static int devices(char *text, struct sim_hello *hello, struct gs_err *err) {
  char *rest = NULL;
  hello->ndevices = 0;
  for (char *part = strtok_r(text, ",", &rest); part; part = strtok_r(NULL, ",", &rest)) {
    char *size = strchr(part, 'x');
    uint64_t count = 1, bytes = 0;
    if (size)
      *size++ = '\0';
    if ((size && number("devices", part, SIM_MAX_DEVICES, &count, NULL)) || count == 0 ||
        size_of(size ? size : part, &bytes))
      return gs_fail(err, -EINVAL, "--devices: write for example 2x16GiB");
    for (uint64_t i = 0; i < count; i++)
      if (add_device(hello, bytes))
        return gs_fail(err, -E2BIG, "--devices: at most %d devices", SIM_MAX_DEVICES);
  }
  return hello->ndevices ? 0 : gs_fail(err, -EINVAL, "--devices: write for example 2x16GiB");
}

/* One character for each device: 0 to 9 or a to f is a group, a dot is none. */
static int groups(int which, const char *name, const char *text, struct options *options, struct gs_err *err) {
  static const char digits[] = "0123456789abcdef";
  size_t length = strlen(text);
  for (size_t i = 0; i < length; i++) {
    const char *digit = i < SIM_MAX_DEVICES ? strchr(digits, text[i]) : NULL;
    if (!digit && (i >= SIM_MAX_DEVICES || text[i] != '.'))
      return gs_fail(err, -EINVAL, "--%s %s: write one of 0 to 9, a to f or a dot for each device", name, text);
    struct sim_device_info *info = &options->hello.device[i];
    uint8_t *group = which == NVLINK ? &info->nvlink : which == PCIE ? &info->pcie : &info->numa;
    *group = digit ? (uint8_t)(digit - digits + 1) : 0;
  }
  if (length > options->described)
    options->described = (uint32_t)length;
  return 0;
}

/* MAJOR:MINOR of the first device's node. The kernel's character majors end at 511, its minors have 20 bits. */
static int nodes(const char *name, char *text, struct sim_hello *hello, struct gs_err *err) {
  uint64_t major = 0, minor = 0;
  char *second = strchr(text, ':');
  if (second == NULL)
    return gs_fail(err, -EINVAL, "--nodes: write MAJOR:MINOR");
  *second++ = '\0';
  int error = number(name, text, 511, &major, err);
  error = error ? error : number(name, second, (1 << 20) - 1, &minor, err);
  hello->node_major = (uint32_t)major;
  hello->node_minor = (uint32_t)minor;
  return error;
}

/* CREATE,MAP,ACCESS,UNMAP in ns. */
static int four(const char *name, char *text, struct sim_hello *hello, struct gs_err *err) {
  uint64_t *const costs[] = {&hello->create_ns, &hello->map_ns, &hello->access_ns, &hello->unmap_ns};
  char *rest = NULL, *part = strtok_r(text, ",", &rest);
  int error = 0;
  for (size_t i = 0; i < sizeof costs / sizeof costs[0] && error == 0; i++, part = strtok_r(NULL, ",", &rest))
    error = part ? number(name, part, 1000000000, costs[i], err) : -EINVAL;
  return error == 0 && part == NULL ? 0 : gs_fail(err, -EINVAL, "--vmm-ns: write CREATE,MAP,ACCESS,UNMAP, each in ns");
}

static const struct option names[] = {
    {"socket", 1, NULL, SOCKET},       {"devices", 1, NULL, DEVICES},   {"kernel-ns", 1, NULL, KERNEL},
    {"context-mib", 1, NULL, CONTEXT}, {"slice-ns", 1, NULL, SLICE},    {"switch-ns", 1, NULL, SWITCH},
    {"preempt", 1, NULL, PREEMPT},     {"launch-ns", 1, NULL, LAUNCH},  {"event-ns", 1, NULL, EVENT},
    {"query-ns", 1, NULL, QUERY},      {"queue-depth", 1, NULL, DEPTH}, {"copy-gbps", 1, NULL, GBPS},
    {"nvlink", 1, NULL, NVLINK},       {"pcie", 1, NULL, PCIE},         {"numa", 1, NULL, NUMA},
    {"driver", 1, NULL, DRIVER},       {"nodes", 1, NULL, NODES},       {"pageable-gbps", 1, NULL, PAGEABLE},
    {"pin-gibps", 1, NULL, PIN},       {"vmm-ns", 1, NULL, VMM},        {NULL, 0, NULL, 0}};

static const char usage[] =
    "usage: gpushare-sim --socket PATH --devices 2x16GiB [--kernel-ns N] [--context-mib N] "
    "[--slice-ns N] [--switch-ns N]\n"
    "                    [--preempt 0|1] [--launch-ns N] [--event-ns N] [--query-ns N] "
    "[--queue-depth N] [--copy-gbps N]\n"
    "                    [--nvlink 0011] [--pcie 0011] [--numa 0011] [--driver 580] "
    "[--nodes MAJOR:MINOR]\n"
    "                    [--pageable-gbps N] [--pin-gibps N] [--vmm-ns CREATE,MAP,ACCESS,UNMAP]\n";

static int one_option(int which, const char *name, char *text, struct options *options, struct gs_err *err) {
  struct sim_hello *hello = &options->hello;
  const uint64_t second = 1000000000;
  uint64_t value = 0;
  int error;
  switch (which) {
    case SOCKET: options->socket = text; return 0;
    case DEVICES: return devices(text, hello, err);
    case KERNEL: return number(name, text, 3600 * second, &hello->kernel_ns, err);
    case CONTEXT:
      error = number(name, text, 1 << 20, &value, err);
      hello->context_bytes = value << 20;
      return error;
    case SLICE:
      error = number(name, text, 10 * second, &hello->slice_ns, err);
      return error || hello->slice_ns >= 100000 ? error : gs_fail(err, -EINVAL, "--slice-ns: at least 100000");
    case SWITCH: return number(name, text, second, &hello->switch_ns, err);
    case PREEMPT:
      error = number(name, text, 1, &value, err);
      hello->preempt = (uint32_t)value;
      return error;
    case LAUNCH: return number(name, text, second, &hello->launch_ns, err);
    case EVENT: return number(name, text, second, &hello->event_ns, err);
    case QUERY: return number(name, text, second, &hello->query_ns, err);
    case DEPTH:
      error = number(name, text, 1 << 20, &value, err);
      hello->queue_depth = (uint32_t)value;
      return error || value ? error : gs_fail(err, -EINVAL, "--queue-depth: at least 1");
    case GBPS: return rate(name, text, &hello->copy_bytes_per_us, err);
    case PAGEABLE: return rate(name, text, &hello->pageable_bytes_per_us, err);
    case PIN:
      error = number(name, text, 10000, &value, err);
      hello->pin_bytes_per_us = (value << 30) / 1000000;
      return error;
    case VMM: return four(name, text, hello, err);
    case DRIVER:
      error = number(name, text, 9999, &value, err);
      hello->driver = (uint32_t)value;
      return error || value ? error : gs_fail(err, -EINVAL, "--driver: a release, such as 615");
    case NODES: return nodes(name, text, hello, err);
    case NVLINK:
    case PCIE:
    case NUMA: return groups(which, name, text, options, err);
    default: return gs_fail(err, -EINVAL, "unknown option");
  }
}

static int parse(int argc, char **argv, struct options *options, struct gs_err *err) {
  *options = (struct options){.hello = {.context_bytes = 16 << 20,
                                        .launch_ns = 2000,
                                        .event_ns = 2500,
                                        .query_ns = 300,
                                        .slice_ns = 2000000,
                                        .driver = SIM_DRIVER_DEFAULT,
                                        .switch_ns = 20000,
                                        .copy_bytes_per_us = 25000,
                                        .pageable_bytes_per_us = 5000,
                                        .queue_depth = 1024,
                                        .preempt = 1}};
  int which, index = 0;
  opterr = 0;
  while ((which = getopt_long(argc, argv, "", names, &index)) != -1) {
    int error = which == '?' ? gs_fail(err, -EINVAL, "unknown option or missing value: %s", argv[optind - 1])
                             : one_option(which, names[index].name, optarg, options, err);
    if (error)
      return error;
  }
  if (optind < argc)
    return gs_fail(err, -EINVAL, "unexpected argument %s", argv[optind]);
  if (options->socket == NULL || options->hello.ndevices == 0)
    return gs_fail(err, -EINVAL, "--socket and --devices are needed");
  if (options->described > options->hello.ndevices)
    return gs_fail(err, -EINVAL, "--nvlink, --pcie, --numa: more are described than there are devices");
  return 0;
}

static void set_timer(struct engine *engine, int timer) {
  uint64_t next = engine->keepers ? UINT64_MAX : engine->lonely_since + LONELY_NS;
  for (uint32_t i = 0; i < engine->options.hello.ndevices; i++)
    if (engine->device[i].timer < next)
      next = engine->device[i].timer;
  struct itimerspec when = {0};
  if (next != UINT64_MAX) {
    when.it_value.tv_sec = (time_t)(next / 1000000000u);
    when.it_value.tv_nsec = (long)(next % 1000000000u);
  }
  timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL);
}

static void due(struct engine *engine) {
  uint64_t now = engine_now();
  for (uint32_t i = 0; i < engine->options.hello.ndevices; i++)
    if (engine->device[i].timer <= now)
      runlist_run(engine, i);
  if (engine->keepers == 0 && now >= engine->lonely_since + LONELY_NS)
    engine->stop = true;
}

static void loop(struct engine *engine, int timer, int signals) {
  static struct source timer_source = {SOURCE_TIMER}, signal_source = {SOURCE_SIGNAL};
  struct epoll_event events[EVENTS];
  engine_watch(engine, timer, &timer_source);
  engine_watch(engine, signals, &signal_source);
  while (!engine->stop) {
    set_timer(engine, timer);
    int count = epoll_wait(engine->epoll, events, EVENTS, -1);
    /* Process ends are handled first: a request for memory may depend on memory that a dead process held. */
    for (int i = 0; i < count; i++) {
      struct source *source = events[i].data.ptr;
      if (source->kind == SOURCE_PIDFD)
        serve_event(engine, source);
    }
    for (int i = 0; i < count; i++) {
      struct source *source = events[i].data.ptr;
      if (source->kind == SOURCE_PIDFD)
        continue;
      if (source->kind == SOURCE_SIGNAL)
        engine->stop = true;
      uint64_t expirations;
      if (source->kind == SOURCE_TIMER && read(timer, &expirations, sizeof expirations) < 0)
        continue;
      serve_event(engine, source);
    }
    due(engine);
    serve_collect();
  }
}

/* Hardware does not wait for a CPU: use real-time scheduling and raise the descriptor limit if permitted. */
static void privileges(void) {
  struct sched_param first = {.sched_priority = 2};
  sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &first);
  prctl(PR_SET_TIMERSLACK, 1ul); /* only has an effect if SCHED_FIFO was refused */
  struct rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
}

int main(int argc, char **argv) {
  static struct engine engine;
  struct gs_err err = {0};
  if (argc == 2 && strcmp(argv[1], "--help") == 0)
    return fputs(usage, stdout) < 0;
  if (parse(argc, argv, &engine.options, &err)) {
    fprintf(stderr, "gpushare-sim: %s\n%s", err.msg, usage);
    return 2;
  }
  privileges();
  signal(SIGPIPE, SIG_IGN);
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGTERM);
  sigaddset(&ends, SIGINT);
  sigprocmask(SIG_BLOCK, &ends, NULL);
  engine.epoll = epoll_create1(EPOLL_CLOEXEC);
  int timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  int signals = signalfd(-1, &ends, SFD_CLOEXEC | SFD_NONBLOCK);
  engine.started = engine.lonely_since = engine_now();
  for (uint32_t i = 0; i < engine.options.hello.ndevices; i++) {
    engine.device[i].total = engine.options.hello.device[i].total_bytes;
    engine.device[i].setting[SIM_PERSISTENCE] = 1;
    engine.device[i].setting[SIM_POWER_LIMIT_MW] = SIM_POWER_LIMIT_DEFAULT_MW;
    engine.device[i].timer = UINT64_MAX;
  }
  if (engine.epoll < 0 || timer < 0 || signals < 0)
    gs_fail(&err, -errno, "cannot start: %s", strerror(errno));
  else
    serve_listen(&engine, &err);
  if (err.code) {
    fprintf(stderr, "gpushare-sim: %s\n", err.msg);
    return 1;
  }
  loop(&engine, timer, signals);
  serve_close(&engine);
  return 0;
}
