/* Zstandard (RFC 8878), decompression of one frame without a dictionary. */
#ifndef SIM_ZSTD_H
#define SIM_ZSTD_H

#include "sim/program/images/parts.h"

/* Decompresses the frame to exactly `bytes` bytes. False: it is damaged or has another length, or out of memory. */
bool sim_zstd(struct sim_piece frame, unsigned char *out, size_t bytes);

#endif
