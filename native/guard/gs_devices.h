/* Device programs of cgroups v2: BPF programs (devices.bpf.c) by which the kernel decides which device nodes the
 * processes of a cgroup and of those below it may open. An attached program stays, without its descriptor and without
 * this process, until it is detached or the cgroup is gone. They need CAP_BPF and CAP_NET_ADMIN (or root).
 *
 * Functions return -errno on failure, with a message in err. cgroup: a descriptor of its directory. */
#ifndef GS_DEVICES_H
#define GS_DEVICES_H

#ifndef __bpf__
#ifndef GS_CFFI
#include <stdint.h>
#include "page/gs_err.h"
#endif
#else
#include "guard/types.h"
#endif

#define GS_DEVICE_RANGES 64
#define GS_GUARDED_MAJOR 0xffffffff           /* in place of a minor: the major is guarded; minors have 20 bits */
#define GS_PASS_OF_USER 0x8000000000000000ULL /* | uid; other passes are of a cgroup */

struct gs_device_range {
  uint32_t major, first_minor, last_minor;
};

struct gs_device_ranges {
  struct gs_device_range range[GS_DEVICE_RANGES];
  uint32_t count;
};

#ifndef __bpf__
struct gs_device_node {
  uint32_t major, minor;
};

/* Loads the program that denies all nodes of the guarded majors but the granted ones. Returns its descriptor. */
int gs_devices_load(const uint32_t *majors, uint32_t nmajors, const struct gs_device_node *granted, uint32_t ngranted,
                    struct gs_err *err);
/* Loads the program that denies the nodes in the ranges to whoever has no pass. name: at most 15 letters, digits and _.
 * Returns its descriptor and, in *passes, that of its map, which is empty. Linux 6.1. */
int gs_exclusive_load(const struct gs_device_ranges *ranges, const char *name, uint32_t most, int *passes,
                      struct gs_err *err);
uint64_t gs_pass_of_user(uint32_t uid);
/* Gives a pass or takes it away; no error if that is done already. pass: of a user, or of a cgroup and those below it:
 * the inode of its directory. */
int gs_exclusive_pass(int passes, uint64_t pass, int given, struct gs_err *err);

/* Attaches a program beside those that are there. */
int gs_device_attach(int cgroup, int program, struct gs_err *err);
int gs_device_detach(int cgroup, int program, struct gs_err *err);
/* Stores descriptors of the programs of this name that are attached to the cgroup itself, which the caller closes, at
 * most count. Returns their number. */
int gs_device_attached(int cgroup, const char *name, int *programs, uint32_t count, struct gs_err *err);
#endif

#endif
