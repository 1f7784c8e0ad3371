/* What a test may ask of the simulated driver from inside the process that uses it. These functions are exported by the
 * simulated libcuda.so.1 beside NVIDIA's names; a real driver has none of them. Find them with dlsym in that library
 * itself: an interposer in front of it does not forward them. tests/support/holds.py is the Python side.
 *
 * Holds. A hold stops one call of one driver function: the next one by a given thread, or by any. It may be the
 * program's own call or one that an interposer makes inside another. Stopped BEFORE, the call has had no effect; stopped
 * AFTER, it has had all of its effect (memory charged or returned, handles made or dead, work submitted), and its result
 * is known but not yet returned. No lock of the simulator is held meanwhile: other threads may call anything.
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

/* Stops one call. function: an exported name, which stands for itself ("cuMemAlloc_v2", "cuMemFreeAsync_ptsz"), or a name
 * without version, which stands for all its versions and both default streams ("cuMemAlloc"). thread: a thread id as of
 * gettid, or 0 for any thread. skip: the number of matching calls to let pass first. Returns the hold's number (from 1);
 * -1: no such function, 0: too many holds at once (32). */
int gs_sim_hold(const char *function, int when, int thread, unsigned skip);
/* The id of the thread that the hold has stopped; 0: none yet, after at most timeout_ms milliseconds; -1: no such hold
 * (it was released). */
int gs_sim_held(int hold, int timeout_ms);
/* Ends the hold: its thread goes on, and if it has stopped none it will not. 1: a thread was stopped, 0: none was, -1: no
 * such hold. */
int gs_sim_release(int hold);

/* The accounts against what is there. Sums the device memory of everything alive in this process anew and compares it
 * with the engine's books. 1: they agree, 0: they do not, -1: no such device. counts: bytes found and in the books,
 * without memory that more than one holder can keep (exports, imports, IPC); the number of such memories that are in use
 * here, and in the books. A call in progress in another thread may be in one of the two sums and not in the other. */
int gs_sim_check(int device, unsigned long long counts[4]);

#pragma GCC visibility pop

#endif
