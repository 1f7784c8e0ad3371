/* A modelled GPU for the meter: one serial device, FIFO streams, costs of calls as published for real drivers. Time is
 * a variable, so the results are exact and independent of the machine. One thread; state is global and reset by
 * `restart`. */
#ifndef MODELLED_GPU_H
#define MODELLED_GPU_H

#include "interposer/meter/meter.h"

/* All times are in ns. LAUNCH, EVENT: host time of the calls. */
enum { LAUNCH = 2000, EVENT = 2500, STREAMS = 6 };

/* The work of another tenant: none, always on the device, or only during its own lease and shortly after; or always
 * from the first second on; or none, but claimed to be always there from then on; or always, but it yields to this program
 * whenever that launches, and is back when that has been idle for 0.2 to 20 ms; or the same of one to four of them, with
 * kernels of up to 20 ms that end in the midst of the program's own. Or no other tenant's, but that of three more
 * processes of the same grant, which launch kernels of `sibling_ns` and wait for each. */
enum others {
  ALONE,
  FOREIGN_ALWAYS,
  FOREIGN_IN_TURN,
  FOREIGN_LATER,
  FOREIGN_CLAIMED,
  FOREIGN_YIELDS,
  FOREIGN_TAILS,
  SIBLINGS
};

static const uint64_t first_instant = 1000000000000u; /* when a program starts */

extern struct gs_meter meter;
extern struct gs_queue queues[STREAMS];
extern struct gs_clock clocks[1];
extern uint64_t now;
extern uint64_t truth;         /* time that the device has worked for the program */
extern uint64_t tail[STREAMS]; /* time at which the stream's work is done */
extern uint64_t hold;          /* how long barriers hold a stream; 0: the driver has no barriers */
extern uint64_t reading;       /* time to read an event that was reached */
extern uint32_t stolen_in;     /* the thread is preempted before one in this many calls, and after as many; 0: never */
extern uint64_t seed;          /* of `chance` */
extern uint64_t first_seed;    /* of `chance` and of the meter's choices, after `restart` */
extern bool metered;           /* false: the program runs without the meter */
extern enum others foreign;
extern uint64_t sibling_ns,
    sibling_pause;              /* how long their kernels are, and how long they wait after one, on average */
extern uint64_t siblings_truth; /* what they did, */
extern double siblings_charged; /* and were charged: none of that was charged before to this process or to them */

/* A number below `below`. */
uint64_t chance(uint64_t below);

/* Launches a kernel of `ns` of the function `key` into stream `s`, as the interposer does. */
void launch(int s, uint64_t key, uint64_t ns);

/* Reports completed marks to the meter. */
void reap(void);

void sync_stream(int s);

/* The program ends the stream, whose work is done, and makes another one. */
void remake_stream(int s);

/* Waits for all streams. */
void sync_all(void);

/* The program waits for the device without a call that the meter sees, for example by polling memory. */
void wait_unseen(int s);

void wait_for(int s, bool unseen);

/* Resets everything except the program's choices: `metered`, `hold`, `reading`, `stolen_in`, `foreign`. */
void restart(void);

#endif
