/* A bounded sample of measured times, and its quantiles. */
#ifndef BENCH_SERIES_H
#define BENCH_SERIES_H

enum { SERIES_MAX = 20000 };

struct series {
  unsigned long seen; /* beyond SERIES_MAX each new value replaces a random one with falling probability */
  double sum, value[SERIES_MAX];
};

void series_add(struct series *series, double value);
void series_clear(struct series *series);
/* Writes "name_ns": {"n", "sum", "p50", "p90", "p99", "max"} to stdout. */
void series_print(struct series *series, const char *name);

#endif
