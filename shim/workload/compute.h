/* Computing for a time, in units of about the same length. */
#ifndef WORKLOAD_COMPUTE_H
#define WORKLOAD_COMPUTE_H

#include "options.h"

/* Keeps the GPU busy, and tells each second how many units it got done. */
void compute(const struct options *options, void *kernel);

#endif
