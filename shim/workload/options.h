/* The workload's command line. */
#ifndef WORKLOAD_OPTIONS_H
#define WORKLOAD_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

struct options {
    uint64_t bytes; /* 0: all that is free */
    uint64_t check; /* at most so many bytes of each chunk are computed on and checked */
    unsigned chunks;
    int gpu;
    double hold, compute; /* seconds */
    double kernel;        /* seconds of a unit of computing */
    double every;         /* seconds of computing in each second; 0: all of it */
    const char *until;    /* a file, until which it is kept; NULL: none */
    unsigned ahead;       /* units that the GPU has been given ahead of time */
    bool go_on;           /* when memory runs out, with what there is */
};

/* Ends the program with a message if the words make no sense. */
struct options options_read(int count, char **words);

#endif
