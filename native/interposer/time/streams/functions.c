#include "interposer/time/streams/functions.h"

#include "interposer/time/streams/repeat.h"

static void for_meters(void (*act)(struct gs_meter *meter, uint64_t key), uint64_t key) {
  struct gs_time *time = gs_time();
  for (uint32_t i = 0; time && i < GS_MAX_DEVICES; i++) {
    struct gs_time_device *device = &time->device[i];
    if (!device->meter)
      continue;
    gs_biased_take(&device->lock);
    act(device->meter, key);
    gs_biased_drop(&device->lock);
  }
}

static void forget_all(struct gs_meter *meter, uint64_t key) {
  (void)key;
  gs_meter_forget_functions(meter);
}

void gs_functions_changed(void) {
  for_meters(forget_all, 0);
  if (gs_time())
    gs_repeat_end(gs_time());
}

void gs_function_changed(uint64_t key) { for_meters(gs_meter_reset_function, key); }
