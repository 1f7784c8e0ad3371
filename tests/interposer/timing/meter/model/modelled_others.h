/* Another tenant on the modelled GPU, and the leases that both have. */
#ifndef MODELLED_OTHERS_H
#define MODELLED_OTHERS_H

#include "modelled_gpu.h"

extern uint64_t device_free; /* when the device has done all that the program has launched */

/* How many others have work on the device then; whether the program has a lease; the lease word. */
uint32_t foreign_at(uint64_t t);
bool held_at(uint64_t t);
uint32_t lease_at(uint64_t t);

/* The time at which the device will have done `ns` of the program's work, from `begin` on. */
uint64_t worked(uint64_t begin, uint64_t ns);

/* The same for a launch, which keeps the lease. */
uint64_t launched(uint64_t begin, uint64_t ns);

/* Number of processes of the grant that are on the device. */
uint32_t residents(void);

/* The others of the grant are charged for what they learn of until then. */
void report(uint64_t until);

/* Whether the others yield whenever the program launches. */
bool yields(void);

/* Asks the others for the lease. */
void regain(void);

/* Tells the meter of changes of the lease word and of the others' work, a little after they happened. */
void notice(void);

/* The program is new. */
void others_anew(void);

#endif
