/* Grants that are more than one share of one device. */
#include "duel.h"

static CUstream second_stream;
static CUfunction second_spin;
static CUcontext second;

static void second_device(void) {
  CUcontext first = duel.context;
  CUfunction spins = duel.spin;
  start(1);
  second = duel.context;
  second_spin = duel.spin;
  second_stream = new_stream();
  duel.context = first;
  duel.spin = spins;
  MUST(cuCtxSetCurrent(first));
}

/* Long kernels on one device and then on the other. */
static void alternating(void) {
  CUstream stream = new_stream();
  second_device();
  begin();
  for (;;) {
    for (int i = 0; i < 4; i++)
      spin(stream, 10 * MS);
    MUST(cuStreamSynchronize(stream));
    for (int i = 0; i < 4; i++)
      spin_as(second_spin, second_stream, 10 * MS);
    MUST(cuStreamSynchronize(second_stream));
  }
}

/* Kernels with the name of a collective, never as many on one device as on the other. */
static void collectives(void) {
  static const char text[] =
      ".version 7.0\n.target sm_52\n.address_size 64\n"
      ".visible .entry ncclDevKernel_duel(.param .u64 a, .param .u64 b, .param .u64 c)\n{\nret;\n}\n";
  CUmodule module;
  CUstream stream = new_stream();
  CUfunction function[2];
  uint64_t ns = 10 * MS, key = 0, ranks = 1;
  void *arguments[] = {&ns, &key, &ranks};
  second_device();
  MUST(cuModuleLoadData(&module, text));
  function[0] = spin_of(module, "ncclDevKernel_duel");
  MUST(cuCtxSetCurrent(second));
  MUST(cuModuleLoadData(&module, text));
  function[1] = spin_of(module, "ncclDevKernel_duel");
  begin();
  for (unsigned i = 0;; i++) {
    key++;
    MUST(cuCtxSetCurrent(i % 40 ? duel.context : second));
    MUST(cuLaunchKernel(function[i % 40 == 0], 1, 1, 1, 1, 1, 1, 0, i % 40 ? stream : second_stream, arguments, NULL));
    if (i % 8 == 7)
      MUST(cuStreamSynchronize(stream));
  }
}

static void half_each(void) {
  CUstream stream = new_stream();
  begin();
  flood(duel.spin, stream, 2 * MS, 8);
}

/* Sleeps until it is owed something, then takes all of it as an interactive grant. */
static void interactive(void) {
  CUstream stream = new_stream();
  begin();
  for (;;) {
    for (int i = 0; i < 30; i++)
      spin(stream, 2 * MS);
    MUST(cuStreamSynchronize(stream));
    sleep_ns(8 * MS);
  }
}

const struct evasion grant_evasions[] = {
    {.name = "alternating", .about = "two devices in turn, 40 ms each", .run = alternating, .devices = 2},
    {.name = "collectives",
     .about = "two devices, 39 kernels on one for one on the other, all named as collectives",
     .run = collectives,
     .devices = 2},
    {.name = "two-grants", .about = "two grants of half the share", .run = half_each, .grants = 2},
    {.name = "interactive",
     .about = "bursts of 60 ms by a grant of class interactive",
     .run = interactive,
     .options = "class=interactive"},
    {0},
};
