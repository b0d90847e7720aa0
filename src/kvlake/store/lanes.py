"""Daemon threads for calls that may hang: a caller waits as long as it likes, and a stuck call never keeps the
process.
"""

import errno
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class Lanes:
    """Up to `width` threads, started as they are needed. Thread-safe."""

    def __init__(self, width: int, name: str) -> None:
        self._width, self._name = width, name
        self._wake = threading.Condition()
        self._queue: deque[tuple[Future[Any], Callable[[], None]]] = deque()  # guarded by _wake
        self._threads = 0  # guarded by _wake
        self._waiting = 0  # threads with nothing to do; guarded by _wake
        self._closed = False  # guarded by _wake

    def submit(self, call: Callable[[], T]) -> "Future[T]":
        """Run `call` on a lane; while all lanes are stuck it waits, and a cancelled future is never run.

        Where no thread can be had the future fails with an OSError.
        """
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = call()
            except BaseException as error:
                # Not swallowed: it is raised where the result is asked for.
                future.set_exception(error)
            else:
                future.set_result(result)

        with self._wake:
            # Behind stuck lanes the queue must not keep the buffers of those who have given up.
            self._queue = deque(item for item in self._queue if not item[0].cancelled())
            self._queue.append((future, run))
            if self._waiting < len(self._queue) and self._threads < self._width and not self._start():
                self._queue.remove((future, run))
                future.set_exception(OSError(errno.EAGAIN, f"no thread can be started for {self._name}"))
            self._wake.notify()
        return future

    def close(self) -> None:
        """Let the threads end once they have nothing left to do."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()

    def _start(self) -> bool:
        """One thread more; False where there is none at all to serve the queue. Needs _wake."""
        thread = threading.Thread(target=self._work, name=f"{self._name}-{self._threads + 1}", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system's limit of threads, or the interpreter is going down
            return self._threads > 0
        self._threads += 1
        return True

    def _work(self) -> None:
        while True:
            with self._wake:
                self._waiting += 1
                while not self._queue and not self._closed:
                    self._wake.wait()
                self._waiting -= 1
                if not self._queue:
                    self._threads -= 1
                    return
                run = self._queue.popleft()[1]
            run()
            del run  # nor may a waiting thread keep the buffers of its last call
