/* The rules of the meter that single calls show: what the files of this test share. */
#ifndef METER_RULES_H
#define METER_RULES_H

#include "interposer/meter/lengths.h"
#include "model/modelled_gpu.h"
#include "../../../support/check.h"

static inline bool near(double is, double should, double off) { return is > should - off && is < should + off; }

/* The program is new, its first two streams are idle, and a mark takes no time on the device. */
void fresh(void);

/* A function whose launches were measured one by one, and took `ns` each. So many of them that another one hardly moves
 * the mean; a check of what a launch teaches sets `weight`. */
struct gs_function *known(uint64_t key, double ns);

/* Makes `n` launches into the stream now, and records a mark behind them until `by`. */
struct gs_mark *marked(int s, struct gs_function *function, uint32_t n, uint64_t by);

/* The oldest mark of the stream was done at `at`: returns what that added to the charge. */
double done(int s, uint64_t at);

/* The same for a launch that is chosen out of `stands` and put between two events: its call ends 3 us from now, and the
 * second event is recorded by 5 us from now. */
double bracket(int s, struct gs_function *function, double stands, enum gs_held held, double took, uint64_t begun);

void check_launches(void);
void check_purse(void);
void check_brackets(void);
void check_marks(void);
void check_beside(void);
void check_waits(void);
void check_late(void);
void check_alike(void);
void check_siblings(void);
void check_wrong(void);

#endif
