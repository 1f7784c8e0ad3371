/* Threads of the interposer's own. */
#ifndef GPUSHARE_THREAD_H
#define GPUSHARE_THREAD_H

/* Starts a detached thread with all signals blocked. Returns 0 or an errno value. */
int gs_thread_start(void *(*run)(void *), void *argument);

#endif
