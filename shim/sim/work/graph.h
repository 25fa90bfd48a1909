/* What graph.c, which makes graphs, and graphexec.c, which runs them, share. */
#ifndef SIM_GRAPH_H
#define SIM_GRAPH_H

#include "driver.h"

struct node {
    CUgraph graph;
    struct work work;
    struct node *next;
};

struct graph {
    struct node *first, **last;
};

#endif
