#include "compute.h"

#include "driver.h"

#include <stdlib.h>
#include <time.h>

#define BLOCK 256u
#define BLOCKS_A_PROCESSOR 8u                   /* 2048 threads: all that it runs at once */
enum { MULTIPROCESSORS = 16 };                  /* CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT */
enum { BLOCKING_SYNC = 1, DISABLE_TIMING = 2 }; /* CU_EVENT_… */

struct unit {
    void *kernel;
    unsigned blocks;
    uint64_t rounds, nanoseconds;
};

static void launch(struct unit *unit) {
    void *params[] = {&unit->rounds, &unit->nanoseconds};
    must(cuLaunchKernel(unit->kernel, unit->blocks, 1, 1, BLOCK, 1, 1, 0, NULL, params, NULL), "launch");
}

/* ---- how many rounds a unit has ---- */

#define PROBE 0.0005 /* seconds, about */
#define PROBES 20

/* The shortest of some tries is the one beside which nobody else computed. */
static double shortest(struct unit *unit, unsigned tries) {
    double best = 0;
    for (unsigned i = 0; i < tries; i++) {
        double begun = now();
        launch(unit);
        must(cuCtxSynchronize(), "compute");
        double took = now() - begun;
        if (i == 0 || took < best) best = took;
    }
    return best;
}

static struct unit measured(const struct options *options, void *kernel) {
    int processors;
    must(cuDeviceGetAttribute(&processors, MULTIPROCESSORS, options->gpu), "ask for the GPU's size");
    struct unit unit = {kernel, (unsigned)processors * BLOCKS_A_PROCESSOR, 1024, (uint64_t)(PROBE * 1e9)};
    while (shortest(&unit, PROBES) < PROBE) unit.rounds *= 2;
    unit.rounds = (uint64_t)((double)unit.rounds * options->kernel / shortest(&unit, PROBES)) + 1;
    unit.nanoseconds = (uint64_t)(options->kernel * 1e9);
    return unit;
}

/* ---- computing ---- */

/* Kernels that were given and are not known to be done: an event after each, used in a circle. */
struct flight {
    void **done;
    unsigned room;
    uint64_t given, landed;
};

static void give(struct flight *flight, struct unit *unit) {
    if (flight->given - flight->landed == flight->room)
        must(cuEventSynchronize(flight->done[flight->landed++ % flight->room]), "compute");
    launch(unit);
    must(cuEventRecord(flight->done[flight->given++ % flight->room], NULL), "record an event");
}

static void land(struct flight *flight) {
    while (flight->landed < flight->given)
        must(cuEventSynchronize(flight->done[flight->landed++ % flight->room]), "compute");
}

static void sleep_until(double at) {
    struct timespec then = {(time_t)at, (long)((at - (double)(time_t)at) * 1e9)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &then, NULL);
}

/* So many units at the beginning of each second, as one who tries things out in a notebook. */
static void in_bursts(const struct options *options, struct flight *flight, struct unit *unit, double end) {
    unsigned units = options->every > options->kernel ? (unsigned)(options->every / options->kernel + 0.5) : 1;
    for (double second = now(); second < end; second += 1) {
        sleep_until(second);
        for (unsigned i = 0; i < units; i++) give(flight, unit);
        land(flight);
        say("computed %u units in %.1f ms", units, (now() - second) * 1e3);
    }
    sleep_until(end);
}

static void without_pause(struct flight *flight, struct unit *unit, double begun, double end) {
    uint64_t printed = 0;
    double next = begun + 1;
    for (double at = begun; at < end; at = now()) {
        give(flight, unit);
        if (at < next) continue;
        say("computed %llu units", (unsigned long long)(flight->landed - printed));
        printed = flight->landed;
        while (next <= at) next += 1; /* held up for seconds, it tells them in one */
    }
    land(flight);
    say("computed %llu units", (unsigned long long)(flight->landed - printed));
}

void compute(const struct options *options, void *kernel) {
    struct unit unit = measured(options, kernel);
    struct flight flight = {.done = calloc(options->ahead, sizeof(void *)), .room = options->ahead};
    if (flight.done == NULL) {
        say("the host has no memory for %u events", options->ahead);
        exit(EXIT_WRONG);
    }
    for (unsigned i = 0; i < flight.room; i++)
        must(cuEventCreate(&flight.done[i], BLOCKING_SYNC | DISABLE_TIMING), "make an event");
    say("computing for %g s in units of %g ms", options->compute, options->kernel * 1e3);
    double begun = now(), end = begun + options->compute;
    if (options->every > 0)
        in_bursts(options, &flight, &unit, end);
    else
        without_pause(&flight, &unit, begun, end);
    say("computed %llu units in all, in %.3f s", (unsigned long long)flight.landed, now() - begun);
    free(flight.done);
}
