"""A fork by a signal's handler, while its thread asks: the child returns into a call that was its parent's."""

from tests.support.card import BUILD

FORKS = """
import signal, time
from tests.support.cuda import Cuda
parent, children = os.getpid(), []
@ctypes.CFUNCTYPE(None, ctypes.c_int)
def forks(_):
    children.append(os.fork())
libc = ctypes.CDLL(None)
libc.signal.argtypes = ctypes.c_int, ctypes.c_void_p
libc.signal(signal.SIGUSR1, ctypes.cast(forks, ctypes.c_void_p))
cuda = Cuda()
cuda("cuCtxSynchronize")
cuda.compute(3000)  # ms: long enough that the signal comes within the wait for it
threading.Timer(0.1, lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)).start()
result = cuda.code("cuCtxSynchronize")
if os.getpid() != parent:
    os._exit(0)
answer = [result, os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1])]
"""


def test_a_child_does_not_leave_a_page_that_is_its_parents(program, grants) -> None:
    """It has none of it: whoever touches it there dies of that."""
    cuda = program(grants, PYTHONPATH=str(BUILD.parent))
    cuda.use()
    page = grants.only_peer().page
    assert cuda.run(FORKS) == [0, 0]
    assert page.inside == 0
