/* A bundle's config.json while a container is started from it. The wrapper puts the edited config in its place and keeps
 * the bundle's own beside it; the createRuntime hook, by which time the runtime has read it, puts that back. So a bundle
 * can be started again, and never holds the grant of a container that has gone.
 *
 * Whoever is killed in between leaves both: the next start of the bundle puts the own one back, unless somebody has
 * changed config.json meanwhile. Starts of one bundle wait for each other until the hook: what shows that one is under
 * way is a lock on the file that is, or will be, its edited config; the wrapper passes it on to the runtime that it
 * becomes. On a file system without locks this relies on a bundle not being started twice at once; on one without links
 * the edited config stays. */
#ifndef GS_BUNDLE_H
#define GS_BUNDLE_H

#include <sys/types.h>

#include "json.h"
#include "page/gs_err.h"

/* Waits for another start of the bundle, and puts back what one that was killed has left. Changes nothing, and costs
 * two looks, where there is neither. dir: of the bundle. */
int gs_bundle_settle(int dir, struct gs_err *err);

/* As gs_bundle_settle, and lets no other start begin until the process has ended, or gs_bundle_leave, or the hook.
 * *claim: for the calls below. */
int gs_bundle_claim(int dir, int *claim, struct gs_err *err);

/* Gives up a claim; config.json is as it was. */
void gs_bundle_leave(int dir, int claim);

/* Makes text the config.json, atomically. The claim stays open over an exec. On an error the claim is given up. */
int gs_bundle_replace(int dir, int claim, struct gs_span text, mode_t mode, struct gs_err *err);

/* Puts the bundle's own config.json back, if another took its place. Never fails: the next start tries again. */
void gs_bundle_put_back(int dir);

#endif
