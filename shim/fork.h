/* What a forked child has to forget: it is a process of its own, so nothing that its parent holds is its own, and its
 * parent's other threads, whatever they were doing, are not there.
 *
 * A file that keeps such things registers what forgets them itself, at its end: FORGET_IN_CHILD(ledger_forget). The
 * linker gathers these, so nothing runs for it when the library is loaded. */
#ifndef GPUSHARE_FORK_H
#define GPUSHARE_FORK_H

#define FORGET_IN_CHILD(function)                                                                                      \
    __attribute__((section("forgetting"), used, retain)) static void (*const function##_in_child)(void) = function

/* From now on a forked child calls all of them. */
void fork_watch(void);

#endif
