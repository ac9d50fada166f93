"""What other processes see: forks, signals, imports."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from fake_daemon import FakeDaemon

import gradsync
from gradsync._transport import _turns
from gradsync._transport._websocket import WebSocket

HERE = str(Path(__file__).parents[1])


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in a fresh interpreter that can import the fake."""
    text = f"import sys; sys.path.insert(0, {HERE!r})\n" + textwrap.dedent(program)
    return subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore:.*fork:DeprecationWarning", "-c", text, *arguments],
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_import_loads_neither_torch_nor_numpy() -> None:
    done = run(
        """
        import gradsync, gradsync.trackers, gradsync.__main__
        print([name for name in ("torch", "numpy") if name in sys.modules])
        """
    )
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_a_forked_child_holds_neither_socket_nor_arena(daemon: FakeDaemon) -> None:
    done = run(
        """
        import os
        import gradsync
        from gradsync.errors import ConnectionLost

        client = gradsync.connect(sys.argv[1])
        grads = client.attach(job="j", rank=0, world_size=1).declare([gradsync.Tensor("a", (1000,))])
        view = grads.input("a").memoryview()
        ours = client._channel._connection._websocket.socket.fileno()
        assert os.path.exists(f"/proc/self/fd/{ours}")
        pid = os.fork()
        if pid == 0:
            try:
                assert not os.path.exists(f"/proc/self/fd/{ours}"), "the socket is open in the child"
                with open("/proc/self/maps") as maps:
                    assert "fake-arena" not in maps.read(), "the arena is mapped in the child"
                for call in (client.status, lambda: grads.ready("a"), lambda: client.attach(world_size=1)):
                    try:
                        call()
                    except (ConnectionLost, gradsync.UsageError) as error:
                        pass
                    else:
                        raise AssertionError(call)
                try:
                    client.status()
                except ConnectionLost as error:
                    assert str(os.getppid()) in str(error)
                client.close()
                with gradsync.connect(sys.argv[1]) as other:  # the child may have its own
                    other.status()
                del view, grads, client
                os._exit(0)
            except BaseException:
                import traceback
                traceback.print_exc()
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        view[:] = bytes(4000)
        grads.ready("a")
        print(grads.finish().step)
        client.close()
        """,
        daemon.path,
    )
    assert (done.stdout, done.stderr) == ("0\n", "")
    assert len(daemon.of("job.attach")) == 1
    assert len(daemon.wait_for("job.detach")) == 1


def test_a_fork_while_another_thread_is_inside_the_client_does_not_hang_the_child(daemon: FakeDaemon) -> None:
    done = run(
        """
        import os
        import gradsync
        from gradsync.errors import ConnectionLost

        client = gradsync.connect(sys.argv[1])
        subscription = client.subscribe(["step"], print)
        with client._channel._calls._lock, client._channel._connection._send_lock:  # as the reader may hold them
            pid = os.fork()
        if pid == 0:
            try:
                client.status()
            except ConnectionLost:
                subscription.cancel()
                client.close()
                os._exit(0)
            os._exit(1)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        client.close()
        """,
        daemon.path,
    )
    assert (done.stdout.strip(), done.stderr) == ("0", "")


def test_a_stale_view_in_a_forked_child_faults_instead_of_reading_strange_memory(daemon: FakeDaemon) -> None:
    done = run(
        """
        import os
        import gradsync

        client = gradsync.connect(sys.argv[1])
        grads = client.attach(job="j", rank=0, world_size=1).declare([gradsync.Tensor("a", (1000,))])
        view = grads.input("a").memoryview()
        pid = os.fork()
        if pid == 0:
            blocks = [bytearray(64 * 4096) for _ in range(50)]
            view[0]
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        client.close()
        """,
        daemon.path,
    )
    assert (done.stdout.strip(), done.stderr) == (str(-signal.SIGSEGV), "")


def test_multiprocessing_children_end_cleanly(daemon: FakeDaemon) -> None:
    done = run(
        """
        import multiprocessing
        import gradsync

        def work(x):
            return x * x

        if __name__ == "__main__":
            client = gradsync.connect(sys.argv[1])
            grads = client.attach(job="j", rank=0, world_size=1).declare([gradsync.Tensor("a", (1000,))])
            with multiprocessing.get_context("fork").Pool(2) as pool:
                print(pool.map(work, range(4)))
            grads.ready("a")
            grads.finish()
            client.close()
        """,
        daemon.path,
    )
    assert (done.stdout.strip(), done.stderr) == ("[0, 1, 4, 9]", "")


def test_an_interpreter_that_ends_without_close_ends_cleanly_with_live_views(daemon: FakeDaemon) -> None:
    done = run(
        """
        import gradsync
        client = gradsync.connect(sys.argv[1])
        grads = client.attach(job="j", rank=0, world_size=1).declare([gradsync.Tensor("a", (1000,))])
        view = grads.input("a").numpy()
        print("end")
        """,
        daemon.path,
    )
    assert (done.stdout.strip(), done.stderr, done.returncode) == ("end", "", 0)
    assert len(daemon.wait_for("job.detach")) == 1  # it left, it did not die


INTERRUPT = """
import signal, threading, time
import gradsync
from fake_daemon import FakeDaemon, NO_REPLY
from pathlib import Path

daemon = FakeDaemon(Path(sys.argv[1]))
client = gradsync.connect(daemon.path)
grads = client.attach(job="j", rank=0, world_size=1).declare([gradsync.Tensor("a", (1,))])
daemon.script["step.finish"] = lambda params: NO_REPLY
grads.ready("a")

def interrupt():
    daemon.wait_for("step.finish")
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)  # not the thread that waits

thread = threading.Thread(target=interrupt)
thread.start()
try:
    grads.finish()
except KeyboardInterrupt:
    print("interrupted")
thread.join()
del daemon.script["step.finish"]
print(grads.finish().step)  # the same step again: nothing was lost
client.close()
daemon.stop()
"""


def test_ctrl_c_leaves_a_waiting_call_and_the_step_can_be_finished_after_it(tmp_path: Path) -> None:
    done = run(INTERRUPT, str(tmp_path))
    assert done.stdout == "interrupted\n0\n", done.stderr  # stderr: a signal in the middle of a send costs a reconnect


def test_ctrl_c_while_nothing_is_read_keeps_the_connection(
    client: gradsync.Client, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_turns, "_LENT_S", 1000.0)  # from now on the main thread reads, however late
    grads = client.attach(job="j", rank=0, world_size=1).declare([gradsync.Tensor("a", (1,))])
    readable = WebSocket.readable

    def interrupted(websocket: WebSocket, timeout: float | None) -> bool:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return readable(websocket, timeout)

    with monkeypatch.context() as patch:
        patch.setattr(WebSocket, "readable", interrupted)
        with pytest.raises(KeyboardInterrupt):
            grads.finish(ready="all")
    assert grads.finish(ready="all").step == 0
    assert len(daemon.of("session.initialize")) == 1


OUT_OF_MEMORY = """
import errno
import gradsync
from gradsync._step import _arena

class Refusing:
    def __getattr__(self, name):
        return getattr(real, name)
    def madvise(self, address, size, advice):
        if advice == _arena._MADV_POPULATE_WRITE:
            import ctypes
            ctypes.set_errno(int(sys.argv[2]))
            return -1
        return real.madvise(address, size, advice)

real = _arena._libc
_arena._libc = Refusing()
with gradsync.connect(sys.argv[1]) as client:
    job = client.attach(job="j", rank=0, world_size=1)
    try:
        grads = job.declare([gradsync.Tensor("a", (5000,))])
        print("declared", bytes(grads.arena_memoryview()) == bytes(20032))
    except gradsync.errors.InsufficientMemory as error:
        print(error)
"""


@pytest.mark.parametrize(("name", "number"), [("Cannot allocate memory", 12), ("Bad address", 14)])
def test_pages_that_cannot_be_had_are_insufficient_memory(name: str, number: int, daemon: FakeDaemon) -> None:
    done = run(OUT_OF_MEMORY, daemon.path, str(number))
    assert name in done.stdout
    assert "cgroup" in done.stdout
    assert daemon.live_buffers == []


def test_a_kernel_without_populate_gets_its_pages_touched(daemon: FakeDaemon) -> None:
    done = run(OUT_OF_MEMORY, daemon.path, "22")
    assert (done.stdout.strip(), done.stderr) == ("declared True", "")


def test_errors_cross_process_pools() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(gradsync.errors.NotReady(0, "m", {"tensors": ["a"]})))
    assert error.tensors == ("a",)
