/* What the C tests share: a check that says where it failed, and threads that start together. */
#ifndef GPUSHARE_TESTS_CHECK_H
#define GPUSHARE_TESTS_CHECK_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                            \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

#define THREADS 8

/* Runs `work` in THREADS threads, each with its number, and waits for them all. */
static inline void in_threads(void *(*work)(void *)) {
    pthread_t threads[THREADS];
    for (size_t index = 0; index < THREADS; index++)
        CHECK(pthread_create(&threads[index], NULL, work, (void *)index) == 0);
    for (size_t index = 0; index < THREADS; index++) CHECK(pthread_join(threads[index], NULL) == 0);
}

#endif
