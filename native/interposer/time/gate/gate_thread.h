#ifndef GPUSHARE_TIME_GATE_THREAD_H
#define GPUSHARE_TIME_GATE_THREAD_H

void gs_gate_thread_start(void);

#endif
