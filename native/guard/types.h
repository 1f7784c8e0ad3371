/* What a BPF program has in place of the C library: the integers, and the kernel's helpers by their numbers
 * (include/uapi/linux/bpf.h). */
#ifndef GS_GUARD_TYPES_H
#define GS_GUARD_TYPES_H

typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef long long int64_t;

enum { BPF_ANY, BPF_NOEXIST };

static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*const bpf_map_update_elem)(void *map, const void *key, const void *value, uint64_t flags) = (void *)2;
static long (*const bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static uint64_t (*const bpf_ktime_get_ns)(void) = (void *)5;
static uint64_t (*const bpf_get_current_pid_tgid)(void) = (void *)14;
static uint64_t (*const bpf_get_current_uid_gid)(void) = (void *)15;
static long (*const bpf_get_current_comm)(void *out, uint32_t size) = (void *)16;
static uint64_t (*const bpf_get_current_task)(void) = (void *)35;
static uint64_t (*const bpf_get_current_cgroup_id)(void) = (void *)80;
static long (*const bpf_send_signal)(uint32_t signal) = (void *)109;
static long (*const bpf_probe_read_user)(void *out, uint32_t size, const void *at) = (void *)112;
static long (*const bpf_probe_read_kernel)(void *out, uint32_t size, const void *at) = (void *)113;
static uint64_t (*const bpf_get_current_ancestor_cgroup_id)(int level) = (void *)123;
static void *(*const bpf_ringbuf_reserve)(void *ring, uint64_t size, uint64_t flags) = (void *)131;
static void (*const bpf_ringbuf_submit)(void *record, uint64_t flags) = (void *)132;
static long (*const bpf_for_each_map_elem)(void *map, void *each, void *with, uint64_t flags) = (void *)164;

#define SECTION(name) __attribute__((section(name), used))
#define INLINE static __attribute__((always_inline)) inline
/* A function that the kernel calls for each element of a map: not inlined, and copied into each program that uses
 * it. */
#define EACH __attribute__((noinline, section(".text")))

#endif
