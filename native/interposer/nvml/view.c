/* The grant as a viewer sees it: its pages, its devices, and how much memory there was when the program first asked. */
#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "interposer/os/files/grant.h"
#include "interposer/os/guest.h"
#include "interposer/nvml/ml.h"
#include "interposer/os/system.h"
#include "interposer/os/files/pages.h"

enum known { UNKNOWN, READABLE, UNREADABLE };

static struct gs_view unreadable = {.known = UNREADABLE};
static struct gs_view *own; /* mapped once; empty again in a forked child */

static struct gs_view *own_view(void) {
  struct gs_view *view = __atomic_load_n(&own, __ATOMIC_ACQUIRE);
  if (view)
    return view;
  struct gs_view *fresh = gs_private_map(sizeof *fresh);
  if (!fresh)
    return &unreadable;
  if (__atomic_compare_exchange_n(&own, &view, fresh, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
    return fresh;
  munmap(fresh, sizeof *fresh);
  return view;
}

static uint32_t open_pages(struct gs_view *view, const char *dir) {
  struct gs_pages pages;
  struct gs_err err = {0};
  if (gs_pages_view(dir, &pages, &err) < 0) {
    gs_say("NVML shows no memory and no processes: %s", err.msg);
    return UNREADABLE;
  }
  view->limits = pages.limits;
  view->usage = pages.usage;
  view->pid_namespace = gs_pid_namespace();
  for (uint32_t i = 0; i < pages.limits->ndevices && i < GS_MAX_DEVICES; i++)
    view->total_bytes[i] = __atomic_load_n(&pages.limits->device[i].memory_bytes, __ATOMIC_ACQUIRE);
  return READABLE;
}

struct gs_view *gs_ml_view(void) {
  const char *dir = gs_grant_dir();
  if (!dir)
    return NULL;
  struct gs_view *view = own_view();
  if (__atomic_load_n(&view->known, __ATOMIC_ACQUIRE) != UNKNOWN)
    return view;
  int saved = errno;
  gs_lock(&view->making);
  if (view->known == UNKNOWN)
    __atomic_store_n(&view->known, open_pages(view, dir), __ATOMIC_RELEASE);
  gs_unlock(&view->making);
  errno = saved;
  return view;
}

/* ---- which device ------------------------------------------------------------------------------------------------ */

static int hex_digit(char c) {
  if (c >= '0' && c <= '9')
    return c - '0';
  if (c >= 'a' && c <= 'f')
    return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* "GPU-8-4-4-4-12" (or "MIG-...") -> 16 bytes */
static bool parse_uuid(const char *text, uint8_t uuid[16]) {
  const char *at = strchr(text, '-');
  unsigned digits = 0;
  for (at = at ? at + 1 : ""; *at && digits < 32; at++) {
    int digit = hex_digit(*at);
    if (digit < 0 && *at != '-')
      return false;
    if (digit >= 0) {
      uuid[digits / 2] = (uint8_t)(digits % 2 ? uuid[digits / 2] | digit : digit << 4);
      digits++;
    }
  }
  return digits == 32;
}

nvmlReturn_t gs_ml_ordinal(const struct gs_view *view, nvmlDevice_t device, int *ordinal) {
  char text[96]; /* NVML_DEVICE_UUID_V2_BUFFER_SIZE */
  uint8_t uuid[16];
  nvmlReturn_t result = gs_ml_uuid(device, text, sizeof text);
  *ordinal = GS_ML_NOT_OURS;
  if (result != NVML_SUCCESS || !view->limits || !parse_uuid(text, uuid))
    return result;
  for (uint32_t i = 0; i < view->limits->ndevices && i < GS_MAX_DEVICES; i++)
    if (memcmp(view->limits->device[i].uuid, uuid, sizeof uuid) == 0)
      *ordinal = (int)i;
  return result;
}

nvmlReturn_t gs_ml_own(const struct gs_view *view, nvmlDevice_t device, int *ordinal) {
  nvmlReturn_t result = gs_ml_ordinal(view, device, ordinal);
  return result == NVML_SUCCESS && *ordinal == GS_ML_NOT_OURS ? NVML_ERROR_INVALID_ARGUMENT : result;
}

nvmlReturn_t gs_ml_device(const struct gs_view *view, nvmlDevice_t device, int *ordinal) {
  nvmlReturn_t result = gs_ml_own(view, device, ordinal);
  return result == NVML_SUCCESS && !view->usage ? NVML_ERROR_NO_PERMISSION : result; /* 0 bytes would be wrong */
}

/* ---- start: from here on `total` does not change ----------------------------------------------------------------- */

static nvmlReturn_t begun(nvmlReturn_t result) {
  if (result == NVML_SUCCESS)
    gs_ml_view();
  return result;
}

GS_ML(nvmlInit, (void)) { return begun(GS_ML_REAL(nvmlInit)()); }
GS_ML(nvmlInit_v2, (void)) { return begun(GS_ML_REAL(nvmlInit_v2)()); }
GS_ML(nvmlInitWithFlags, (unsigned int flags)) { return begun(GS_ML_REAL(nvmlInitWithFlags)(flags)); }
