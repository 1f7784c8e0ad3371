/* Sources and destinations for rows that copy. */
#include "rows.h"

struct copy copy_ready(struct rows *r) {
  struct copy c = {.from = memory(r, BYTES),
                   .to = memory(r, BYTES),
                   .array_from = array_1d(r),
                   .array_to = array_1d(r),
                   .host_from = pattern(),
                   .host_to = zeroes()};
  put(r, c.from, pattern(), BYTES);
  put(r, c.to, c.host_to, BYTES);
  put_array(r, c.array_from, pattern());
  put_array(r, c.array_to, c.host_to);
  return c;
}

void on_device(struct rows *r, const struct copy *c) { holds(r, c->to, pattern(), BYTES); }
void in_array(struct rows *r, const struct copy *c) { array_holds(r, c->array_to, pattern()); }
void on_host(struct rows *r, const struct copy *c) {
  settle(r);
  same(r, c->host_to, pattern(), BYTES, "other bytes on the host");
}
