/* Functions with which a test controls the simulated driver from inside the process that uses it. The simulated
 * libcuda.so.1 exports them alongside NVIDIA's names; a real driver has none of them. Find them with dlsym in that
 * library itself: an interposer in front of it does not forward them. tests/support/memory/holds.py is the Python side.
 *
 * Holds. A hold stops one call of one driver function: the next one by a given thread, or by any thread. It may be the
 * program's own call or one that an interposer makes inside another call. Stopped BEFORE, the call has had no effect;
 * stopped AFTER, it has had all of its effect (memory charged or returned, handles made or dead, work submitted), and
 * its result is known but not yet returned. The stopped thread holds no lock of the simulator: other threads may call
 * anything.
 *
 *   int hold = gs_sim_hold("cuMemRelease", GS_SIM_AFTER, 0, 0);
 *   ... another thread calls cuMemRelease ...
 *   while (gs_sim_held(hold, 1000) == 0) ...;
 *   cuMemMap(...);
 *   gs_sim_release(hold);
 *
 * A call that began before the hold was placed is not stopped by it. A child made by fork has no holds. */
#ifndef SIM_TEST_H
#define SIM_TEST_H

#pragma GCC visibility push(default)

enum gs_sim_when { GS_SIM_BEFORE = 0, GS_SIM_AFTER = 1 };

/* Places a hold that stops one call. function: an exported name, which matches only itself ("cuMemAlloc_v2",
 * "cuMemFreeAsync_ptsz"), or a name without version, which matches all its versions and both default streams
 * ("cuMemAlloc"). thread: a thread id from gettid, or 0 for any thread. skip: number of matching calls to let pass
 * first. Returns the hold's number (from 1); -1: no such function, 0: too many holds at once (32). */
int gs_sim_hold(const char *function, int when, int thread, unsigned skip);
/* Waits until the hold has stopped a thread and returns the thread's id; 0: none after timeout_ms milliseconds; -1: no
 * such hold (it was released). */
int gs_sim_held(int hold, int timeout_ms);
/* Ends the hold: the stopped thread continues, or the hold will stop none. 1: a thread was stopped, 0: none was, -1: no
 * such hold. */
int gs_sim_release(int hold);

/* Checks the accounts: recomputes the device memory of everything alive in this process and compares it with the
 * engine's accounts. 1: they agree, 0: they do not, -1: no such device, or no answer from the engine. counts: bytes
 * found and bytes in the accounts, both without memory that more than one holder can keep (exports, imports, IPC);
 * holds of such memory found here and in the accounts. A call in progress in another thread may be in one of the two
 * sums and not in the other. */
int gs_sim_check(int device, unsigned long long counts[4]);

#pragma GCC visibility pop

#endif
