/* Which devices this process sees, and in which order: those whose nodes it may open, numbered from 0, of which
 * CUDA_VISIBLE_DEVICES may hide some and reorder the rest (CUDA Programming Guide, "CUDA Environment Variables"). */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "sim/model/model.h"

struct sim_device sim_devices[SIM_MAX_DEVICES];
struct sim_hello sim_hello;

static void uuid_text(const uint8_t uuid[16], char out[41]) {
  static const char dash_before[16] = {[4] = 1, [6] = 1, [8] = 1, [10] = 1};
  char *at = out + sprintf(out, "GPU-");
  for (int i = 0; i < 16; i++)
    at += sprintf(at, "%s%02x", dash_before[i] ? "-" : "", uuid[i]);
}

/* True if this process may open the device's node, as a real driver would require. The node has no driver behind it, so
 * open() fails with ENXIO if permission is granted. */
static bool node_opens(const struct sim_hello *hello, uint32_t index) {
  char path[64];
  if (hello->node_major == 0)
    return true;
  snprintf(path, sizeof path, SIM_NODE_PATH "%u", hello->node_minor + index);
  int fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0)
    return errno == ENXIO;
  close(fd);
  return true;
}

static uint32_t openable(const struct sim_hello *hello, uint32_t index[SIM_MAX_DEVICES]) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < hello->ndevices; i++)
    if (node_opens(hello, i))
      index[count++] = i;
  return count;
}

/* The number, below `count`, that one entry of the list refers to: by its leading digits, or by an unambiguous prefix of
 * a UUID; -1 if none. */
static int referred(const struct sim_hello *hello, const uint32_t *index, uint32_t count, const char *entry,
                    size_t length) {
  if (isdigit((unsigned char)*entry)) {
    unsigned long number = strtoul(entry, NULL, 10);
    return number < count ? (int)number : -1;
  }
  int found = -1;
  for (uint32_t i = 0; i < count && length > 4; i++) {
    char text[41];
    uuid_text(hello->device[index[i]].uuid, text);
    if (strncasecmp(text, entry, length) != 0)
      continue;
    if (found >= 0)
      return -1;
    found = (int)i;
  }
  return found;
}

static void show(const struct sim_hello *hello, uint32_t index) {
  sim_devices[sim_hello.ndevices].index = index;
  sim_hello.device[sim_hello.ndevices++] = hello->device[index];
}

void sim_choose_devices(const struct sim_hello *hello) {
  const char *list = getenv("CUDA_VISIBLE_DEVICES");
  uint32_t index[SIM_MAX_DEVICES], count = openable(hello, index), seen = 0;
  sim_hello = *hello;
  sim_hello.ndevices = 0;
  for (uint32_t i = 0; !list && i < count; i++)
    show(hello, index[i]);
  while (list) {
    list += strspn(list, " \t");
    int number = referred(hello, index, count, list, strcspn(list, ", \t"));
    if (number < 0)
      return; /* the list ends */
    if (seen >> number & 1) {
      sim_hello.ndevices = 0; /* as PyTorch found it to be: github.com/pytorch/pytorch/pull/92315 */
      return;
    }
    seen |= 1u << number;
    show(hello, index[number]);
    list += strcspn(list, ",");
    list = *list ? list + 1 : NULL;
  }
}
