/* A modelled GPU for the meter: one serial device, FIFO streams, costs of calls as published for real drivers. Time is a
 * variable, so the results are exact and independent of the machine. One thread; state is global and reset by
 * `restart`. */
#ifndef MODELLED_GPU_H
#define MODELLED_GPU_H

#include "interposer/meter/meter.h"

/* Times in ns, as all here. LAUNCH, EVENT: what the calls take on the host. */
enum { LAUNCH = 2000, EVENT = 2500, STREAMS = 6 };

/* The work of another tenant: none, always on the device, or only during its own lease and shortly after; or none at any
 * time, but said to be there always, from a second on. */
enum others { ALONE, FOREIGN_ALWAYS, FOREIGN_IN_TURN, FOREIGN_SAID };

extern struct gs_meter meter;
extern struct gs_queue queues[STREAMS];
extern struct gs_clock clocks[1];
extern uint64_t now;
extern uint64_t truth;         /* what the device has worked */
extern uint64_t tail[STREAMS]; /* when the stream's work is done */
extern uint64_t hold;          /* for how long barriers hold a stream; 0: the driver has none */
extern uint64_t noticed;       /* the gate thread has seen all events up to here */
extern uint64_t reading;       /* what it takes to read an event that was reached */
extern uint32_t stolen_in;     /* the thread is preempted in one of this many calls, 0: never */
extern uint64_t seed;          /* of `chance` */
extern bool metered;           /* else the program runs without the meter */
extern enum others foreign;

/* A number below `below`. */
uint64_t chance(uint64_t below);

/* A launch of the function `key` into stream `s`, which takes `ns`, as the interposer does it. */
void launch(int s, uint64_t key, uint64_t ns);

/* The meter is told of the marks that are done. */
void reap(void);

void sync_stream(int s);

/* Of all streams. */
void sync_all(void);

/* The program waits for the device without a call that the meter is told of: it looks at memory, say. */
void wait_unseen(int s);

void wait_for(int s, bool unseen);

/* Everything as at the start, but for what the program chose: `metered`, `hold`, `reading`, `stolen_in`, `foreign`. */
void restart(void);

#endif
