/* Programs of many kinds on a modelled GPU, each run without the meter and with it.
 *
 * Usage: meter_programs PROGRAM KERNEL_NS [COUNT [HOLD_NS [SEED]]], which prints "truth metered wall bare", in ns. PROGRAM is
 * a name from the table below, then words that modify it (see `main`), then its numbers, each after a colon. */
#include "model/modelled_others.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The program to run: `n` launches of kernels of about `ns`. `words`: all of PROGRAM. */
struct asked {
  const char *words;
  uint64_t ns;
  int n;
  unsigned long first, second; /* the program's numbers; 0: not given */
  bool host, sync;             /* the host pauses; it waits */
  bool unseen;                 /* the meter sees no wait */
};

static void back_to_back(const struct asked *asked) {
  for (int i = 0; i < asked->n; i++)
    launch(0, 0x1000, asked->ns);
}

static void host(const struct asked *asked) {
  for (int i = 0; i < asked->n; i++) {
    launch(0, 0x1000, asked->ns);
    now += 20000;
  }
}

static void synced(const struct asked *asked) {
  for (int i = 0; i < asked->n; i++) {
    launch(0, 0x1000, asked->ns);
    sync_stream(0);
  }
}

/* A stream for each task, which is one launch, or "pairs" of tasks at once; of uneven lengths with "any". */
static void tasks(const struct asked *asked) {
  int at_once = strstr(asked->words, "pairs") ? 2 : 1;
  bool any = strstr(asked->words, "any") != NULL;
  for (int i = 0; i < asked->n; i += at_once) {
    for (int s = 0; s < at_once; s++) {
      remake_stream((i + s) % STREAMS);
      launch((i + s) % STREAMS, 0x1000, any ? asked->ns / 10 + chance(asked->ns * 18 / 10) : asked->ns);
    }
    for (int s = 0; s < at_once; s++)
      wait_for((i + s) % STREAMS, asked->unseen);
  }
}

/* Each launch is of a function that was never launched before, as where each task makes a graph of its own. */
static void strangers(const struct asked *asked) {
  for (int i = 0; i < asked->n; i++) {
    launch(0, 0x1000 + 16 * (uint64_t)i, asked->ns);
    wait_for(0, asked->unseen);
  }
}

/* Each tenth kernel is of another function, and takes 40 times as long. */
static void mix(const struct asked *asked) {
  for (int i = 0; i < asked->n; i++) {
    bool longer = i % 10 == 9;
    launch(0, longer ? 0x2000 : 0x1000, longer ? 40 * asked->ns : asked->ns);
    if (asked->host && i % 100 == 99) {
      sync_stream(0);
      now += 300000;
    }
  }
}

static void two_streams(const struct asked *asked) {
  for (int i = 0; i < asked->n; i++)
    launch(i & 1, 0x1000, asked->ns);
}

static void bursts(const struct asked *asked) {
  for (int i = 0; i < asked->n; i++) {
    launch(0, 0x1000, asked->ns);
    if (i % 400 == 399)
      now += 4000000;
  }
}

/* Several streams, of a program that cannot fill the device on its own. */
static void many(const struct asked *asked) {
  for (int i = 0; i < asked->n; i++) {
    launch((int)chance(STREAMS), 0x1000 + 16 * chance(4), asked->ns / 10 + chance(asked->ns * 18 / 10));
    now += chance(asked->ns * 2);
  }
}

/* One function, whose kernels take `ns` on average. */
static void uneven(const struct asked *asked) {
  for (int i = 0; i < asked->n; i++) {
    launch(0, 0x1000, asked->ns / 10 + chance(asked->ns * 18 / 10));
    if (asked->host)
      now += asked->ns / 2 + chance(asked->ns * 2);
    if (asked->sync)
      sync_stream(0);
  }
}

/* Training steps at the pace of the host: 900 launches of 60 functions, then a wait. The durations of a third of the
 * functions vary between a sixteenth of their maximum and the maximum with the same grid. */
static void layers(const struct asked *asked) {
  for (int i = 0; i < asked->n; i++) {
    uint64_t layer = (uint64_t)i % 900, function = layer % 60, mean = asked->ns / 4 + asked->ns * (function % 7) / 2;
    launch(0, 0x1000 + 16 * function, function % 3 ? mean : mean / 4 << (layer / 60 + function) % 5);
    now += 8000 + chance(40000);
    if (layer == 899)
      wait_for(0, asked->unseen);
  }
}

/* STREAMS:SEED: five functions with heavy-tailed durations, waits and pauses. */
static void random_program(const struct asked *asked) {
  seed = asked->second + first_seed;
  for (int i = 0; i < asked->n; i++) {
    int s = (int)chance(asked->first);
    uint64_t function = chance(5), longer = chance(64) == 0 ? 20 + chance(200) : 1 + chance(3);
    launch(s, 0x1000 + 16 * function, (asked->ns + function * asked->ns / 2) * longer);
    if (chance(3) == 0)
      wait_for(s, asked->unseen);
    if (chance(4) == 0)
      now += chance(300000);
  }
}

/* COUNT:LONG_NS: a long launch after every COUNT short ones; "batch" waits for the long ones only. */
static void rare(const struct asked *asked) {
  bool batch = strstr(asked->words, "batch") != NULL;
  for (int i = 0; i < asked->n; i++) {
    bool longer = (unsigned long)i % (asked->first + 1) == asked->first;
    launch(0, 0x1000, longer ? asked->second : asked->ns);
    if (longer || !batch)
      wait_for(0, asked->unseen);
  }
}

/* HITS:LONG_NS: short launches until HITS of the calls took longer than a plain launch, so they were measured; then
 * long ones until one was. */
static void watched(const struct asked *asked) {
  unsigned long seen = 0;
  bool lengthy = false;
  for (int i = 0; i < asked->n; i++) {
    uint64_t called = now;
    launch(0, 0x1000, lengthy ? asked->second : asked->ns);
    seen += now - called > LAUNCH + EVENT;
    if (seen == (lengthy ? 1 : asked->first)) {
      lengthy = !lengthy;
      seen = 0;
    }
    wait_unseen(0);
    now += 15000;
  }
}

/* COUNT:LONG_NS: long launches until one of the calls took longer, so it was measured; then COUNT short ones at the host's
 * pace, which leave no room for the mean. */
static void refuting(const struct asked *asked) {
  for (int i = 0; i < asked->n;) {
    bool seen = false;
    for (; i < asked->n && !seen; i++) {
      uint64_t called = now;
      launch(0, 0x1000, asked->second);
      seen = now - called > LAUNCH + EVENT;
      wait_unseen(0);
      now += 5000;
    }
    for (unsigned long k = 0; i < asked->n && k < asked->first; k++, i++) {
      launch(0, 0x1000, asked->ns);
      now += 3000;
    }
    wait_unseen(0);
  }
}

/* COUNT: one function with COUNT classes of grids, waited for now and then. */
static void sizes(const struct asked *asked) {
  for (int i = 0; i < asked->n; i++) {
    uint64_t size = 3 + chance(asked->first);
    launch(0, 0x7f0000001000 ^ size << 56, asked->ns + asked->ns * size / 16);
    if (chance(2))
      now += 20000;
    if (chance(2))
      sync_stream(0);
  }
}

/* LONG_NS: the first launches of the one function take LONG_NS, the later ones less. */
static void shrinking(const struct asked *asked) {
  for (int i = 0; i < asked->n; i++) {
    launch(0, 0x1000, i < asked->n / 20 ? asked->first : asked->ns);
    wait_for(0, asked->unseen);
  }
}

/* LONG_NS: the same at the host's pace, which then is slower than the device; into two streams in turn. */
static void warming(const struct asked *asked) {
  for (int i = 0; i < asked->n; i++) {
    launch(i / 100 & 1, 0x1000, i < 20 ? asked->first : asked->ns);
    now += asked->ns / 4;
  }
}

/* LONG_NS: long launches until a bracket may be due, then short ones until it was taken. */
static void in_step(const struct asked *asked) {
  for (int i = 0; i < asked->n; i++) {
    bool longer = metered && i > 100 && now - queues[0].last_bracket < 750000;
    launch(0, 0x1000, longer ? asked->first : asked->ns);
    wait_for(0, asked->unseen);
    if (asked->host)
      now += 5000;
  }
}

/* SEED: wakes up, makes two or three bursts of launches of one function, waits after each, and pauses. How many and how
 * long is drawn once; KERNEL_NS is the longest. With "first" as the first number of 0, the shortest program there is:
 * 1 us, a wait, 5 launches of KERNEL_NS, a wait. */
static void pulse(const struct asked *asked) {
  struct {
    uint64_t launches, ns;
  } burst[3] = {{1, 1000}, {5, asked->ns}};
  uint64_t pause = 60000000, bursts = 2;
  seed = asked->first + first_seed;
  if (asked->first > 0) {
    bursts = 2 + chance(2);
    pause = 1000000 << chance(8);
    for (uint64_t i = 0; i < bursts; i++) {
      burst[i].launches = 1 + chance(8);
      for (burst[i].ns = asked->ns; burst[i].ns > 2000 && chance(4) > 0;)
        burst[i].ns /= 2 + chance(2);
    }
  }
  for (uint64_t began = now; now < began + 5000000000;) {
    for (uint64_t i = 0; i < bursts; i++) {
      for (uint64_t k = 0; k < burst[i].launches; k++)
        launch(0, 0x1000, burst[i].ns);
      wait_for(0, asked->unseen);
    }
    now += pause / 2 + chance(pause);
  }
}

/* PERIOD_NS: one launch per period, and no wait. */
static void rarely(const struct asked *asked) {
  uint64_t next = now;
  for (int i = 0; i < asked->n; i++, next += asked->first) {
    if (now < next)
      now = next;
    launch(0, 0x1000, asked->ns);
  }
}

static const struct {
  const char *name;
  int numbers;
  void (*run)(const struct asked *);
} programs[] = {
    /* a name comes before any other name that is a prefix of it */
    {"b2b", 0, back_to_back}, {"turns", 0, back_to_back},    {"host", 0, host},     {"sync", 0, synced},
    {"mix", 0, mix},          {"two", 0, two_streams},       {"burst", 0, bursts},  {"many", 0, many},
    {"uneven", 0, uneven},    {"random", 2, random_program}, {"rarely", 1, rarely}, {"rare", 2, rare},
    {"layers", 0, layers},    {"watched", 2, watched},       {"sizes", 1, sizes},   {"shrinking", 1, shrinking},
    {"step", 1, in_step},     {"pulse", 1, pulse},           {"tasks", 0, tasks},   {"strangers", 0, strangers},
    {"warming", 1, warming},  {"refuting", 2, refuting},
};

static void run(size_t program, const struct asked *asked) {
  programs[program].run(asked);
  sync_all();
}

/* Index of the program that `words` begin with; -1: there is none, or its numbers are missing. */
static int find(struct asked *asked) {
  for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
    if (strncmp(asked->words, programs[i].name, strlen(programs[i].name)) != 0)
      continue;
    const char *numbers = strchr(asked->words, ':');
    int given = numbers ? sscanf(numbers, ":%lu:%lu", &asked->first, &asked->second) : 0;
    return given == programs[i].numbers ? (int)i : -1;
  }
  return -1;
}

int main(int argc, char **argv) {
  if (argc < 3)
    return 2;
  const char *words = argv[1];
  struct asked asked = {
      .words = words,
      .ns = strtoull(argv[2], NULL, 10),
      .n = argc > 3 ? atoi(argv[3]) : 20000,
      .host = strstr(words, "host"),
      .sync = strstr(words, "sync"),
      .unseen = strstr(words, "unseen"),
  };
  int program = find(&asked);
  if (program < 0)
    return 2;
  hold = argc > 4 ? strtoull(argv[4], NULL, 10) : hold;
  first_seed = argc > 5 ? strtoull(argv[5], NULL, 10) : first_seed;
  /* "dear": reading an event takes as long as in PyTorch on an H200, where its data is in no cache. "starved": the
   * thread is often preempted. "turns": in turn with another tenant; "later", "claimed": with one that works, or
   * only claims to work, from the first second on. */
  reading = strstr(words, "dear") ? 6000 : 0;
  stolen_in = strstr(words, "starved") ? 400 : 0;
  if (strstr(words, "turns") || strstr(words, "yields") || strstr(words, "tails"))
    foreign = strstr(words, "claimed")      ? FOREIGN_CLAIMED
              : strstr(words, "later")      ? FOREIGN_LATER
              : strstr(words, "yields")     ? FOREIGN_YIELDS
              : strstr(words, "tails")      ? FOREIGN_TAILS
              : strcmp(words, "turns") == 0 ? FOREIGN_ALWAYS
                                            : FOREIGN_IN_TURN;

  /* "among": beside other processes of its grant that do the same; "bystanders": that hardly do anything. */
  if (strstr(words, "among") || strstr(words, "bystanders"))
    foreign = SIBLINGS;
  sibling_ns = strstr(words, "bystanders") ? 2000 : asked.ns;
  sibling_pause = strstr(words, "bystanders") ? 1000000 : 0;

  uint64_t began = now;
  metered = false;
  restart();
  run((size_t)program, &asked);
  uint64_t bare = now - began;
  metered = true;
  restart();
  began = now;
  run((size_t)program, &asked);
  gs_meter_end(&meter);
  report(UINT64_MAX);
  printf("%llu %.0f %llu %llu\n", (unsigned long long)(truth + siblings_truth), meter.busy + siblings_charged,
         (unsigned long long)(now - began), (unsigned long long)bare);
  return 0;
}
