"""What a thread is subject to while it waits within a call: signals, and its own cancellation."""

import subprocess

import pytest

from tests.support.card import CONTEXT, MIB
from tests.support.eventually import until

# A signal each millisecond. How long a call takes then has a lower bound only.
UNDER_SIGNALS = """
import signal, time
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
out, before = ctypes.c_uint64(), time.monotonic()
result = CALL
signal.setitimer(signal.ITIMER_REAL, 0)
answer = [result, time.monotonic() - before]
"""


def test_signals_do_not_shorten_the_wait_for_a_scheduler(grants, program):
    grants.go_away()
    cuda = program(grants, GPUSHARE_PATIENCE="2")
    cuda("cuInit", 0)
    call = "lib.cuDevicePrimaryCtxRetain(ctypes.byref(out), 0)"
    result, seconds = cuda.run(UNDER_SIGNALS.replace("CALL", call))
    assert result == 2
    assert seconds >= 2


@pytest.fixture
def hog(card):
    """Holds all of the card but 300 MiB."""
    return card.hold("4750m")


def test_signals_do_not_shorten_the_wait_for_the_cards_memory(grants_of, program, hog):
    cuda = program(grants_of(quota=3000 * MIB, extra=3000 * MIB))
    cuda.use()
    call = "lib.cuMemAlloc_v2(ctypes.byref(out), ctypes.c_size_t(1000 << 20))"
    result, seconds = cuda.run(UNDER_SIGNALS.replace("CALL", call))
    assert result == 2
    assert seconds >= 2  # 1 + 2 + … + 32 + 32 × 64 ms


# A thread that allocates is cancelled when "cancel" is read. It says what became of the call, and ends by itself.
CANCELLED = r"""
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
static void *driver;
static int call(const char *name, void *a, void *b) {
    return ((int (*)(void *, void *))dlsym(driver, name))(a, b);
}
static void *context;
static void *allocate(void *bytes) {
    unsigned long long address;
    call("cuCtxSetCurrent", context, NULL);
    printf("result %d\n", call("cuMemAlloc_v2", &address, bytes)); /* cancelled in a flush it would be written twice */
    for (;;) pause();
}
int main(void) {
    pthread_t thread;
    char line[64];
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    call("cuInit", NULL, NULL);
    call("cuDevicePrimaryCtxRetain", &context, NULL);
    pthread_create(&thread, NULL, allocate, (void *)(1000ul << 20));
    fgets(line, sizeof line, stdin);
    pthread_cancel(thread);
    pthread_join(thread, NULL);
    unsigned long long (*calls)(const char *) = (unsigned long long (*)(const char *))dlsym(driver, "sim_calls");
    printf("joined after %llu\n", calls("cuMemAlloc_v2"));
    fflush(stdout);
    fgets(line, sizeof line, stdin);
}
"""


@pytest.fixture
def cancelled(card, tmp_path):
    """Starts that program: `cancelled(grants)`."""
    (tmp_path / "cancelled.c").write_text(CANCELLED)
    words = ["cc", "-w", "-pthread", "-o", tmp_path / "cancelled", tmp_path / "cancelled.c", "-ldl"]
    subprocess.run(words, check=True)

    def start(grants):
        return card.popen([str(tmp_path / "cancelled")], env=grants.env(), stdin=-1, stdout=-1)

    return start


def say(process):
    process.stdin.write("cancel\n")
    process.stdin.flush()


def test_a_thread_cancelled_while_it_waits_for_the_card_loses_nothing(grants_of, cancelled, hog):
    process = cancelled(grants := grants_of(quota=3000 * MIB, extra=3000 * MIB))
    until(lambda: grants.peers and grants.peers[0].used() == CONTEXT + 1000 * MIB)
    say(process)
    assert process.stdout.readline() == "result 2\n"
    assert "joined" in process.stdout.readline()
    assert grants.only_peer().used() == CONTEXT


def test_a_thread_cancelled_while_it_is_suspended_has_what_it_was_granted(grants, cancelled, card):
    grants.hold()
    process = cancelled(grants)
    grants.answer(grants.next_open())  # the context's
    question = grants.next_open()
    say(process)
    grants.answer(question)
    assert process.stdout.readline() == "result 0\n"
    assert "joined" in process.stdout.readline()
    assert grants.only_peer().used() == card.gpus()[0]["held"][process.pid] == CONTEXT + 1000 * MIB
