/* The hardware of every simulated device: NVIDIA's A100 with 40 GB (SXM4). The properties that the driver reports and
 * the durations of work are both derived from these numbers.
 *
 * Sources: "NVIDIA A100 Tensor Core GPU Architecture" (whitepaper, tables 1, 4 and 5), and the CUDA programming guide,
 * technical specifications of compute capability 8.0. */
#ifndef SIM_CARD_H
#define SIM_CARD_H

enum { SIM_CAPABILITY_MAJOR = 8, SIM_CAPABILITY_MINOR = 0 };

enum {
  SIM_MULTIPROCESSORS = 108,
  SIM_CLOCK_KHZ = 1410000,
  SIM_MEMORY_CLOCK_KHZ = 1215000,
  SIM_MEMORY_BITS = 5120, /* width of the memory bus */
  SIM_WARP = 32,
  SIM_MAX_THREADS = 1024, /* of a block */
  /* per multiprocessor: */
  SIM_THREADS = 2048,
  SIM_BLOCKS = 32,
  SIM_REGISTERS = 65536,
  SIM_REGISTERS_UNIT = 256, /* allocation granularity per warp */
  SIM_SHARED = 167936,
  SIM_SHARED_RESERVED = 1024, /* reserved by CUDA in each block */
  SIM_SHARED_DEFAULT = 49152, /* maximum of a block that does not opt in to more */
  SIM_SHARED_OPTIN = SIM_SHARED - SIM_SHARED_RESERVED
};

/* Peak dense operations per clock of a multiprocessor; a multiply-add counts as two. FP64 uses the tensor cores. */
enum {
  SIM_FP64_PER_CLOCK = 128,
  SIM_FP32_PER_CLOCK = 128,
  SIM_TF32_PER_CLOCK = 1024,
  SIM_FP16_PER_CLOCK = 2048,
  SIM_INT8_PER_CLOCK = 4096
};

/* Peak rates of the whole device: memory bytes (double data rate) and operations. */
#define SIM_BYTES_PER_NS (2.0 * SIM_MEMORY_CLOCK_KHZ / 1e6 * SIM_MEMORY_BITS / 8)
#define SIM_PER_NS(per_clock) ((double)(per_clock) * SIM_MULTIPROCESSORS * SIM_CLOCK_KHZ / 1e6)

/* Device time of a nearly empty kernel. Assumed: profilers show 1 to 2 us on such cards. */
#define SIM_SHORTEST_NS 2000

#endif
