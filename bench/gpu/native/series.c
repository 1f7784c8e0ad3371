#include "series.h"

#include <stdio.h>
#include <stdlib.h>

void series_add(struct series *series, double value) {
  unsigned long place = series->seen++;
  series->sum += value;
  if (place >= SERIES_MAX)
    place = (unsigned long)(drand48() * (double)series->seen);
  if (place < SERIES_MAX)
    series->value[place] = value;
}

void series_clear(struct series *series) {
  series->seen = 0;
  series->sum = 0;
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

void series_print(struct series *series, const char *name) {
  unsigned long n = series->seen < SERIES_MAX ? series->seen : SERIES_MAX;
  const double *v = series->value;
  if (n == 0) {
    printf(", \"%s_ns\": null", name);
    return;
  }
  qsort(series->value, n, sizeof *v, ascending);
  printf(", \"%s_ns\": {\"n\": %lu, \"sum\": %.0f, \"p50\": %.0f, \"p90\": %.0f, \"p99\": %.0f, \"max\": %.0f}", name,
         series->seen, series->sum, v[n / 2], v[n * 90 / 100], v[n * 99 / 100], v[n - 1]);
}
