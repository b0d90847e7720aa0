"""Daemon threads for calls that may hang: a caller waits as long as it likes, and a stuck call never keeps the
process.
"""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


class Lanes:
    """Up to `width` threads, started as they are needed. Thread-safe."""

    def __init__(self, width: int, name: str) -> None:
        self._width, self._name = width, name
        self._wake = threading.Condition()
        self._queue: deque[Callable[[], None]] = deque()  # guarded by _wake
        self._threads = 0  # guarded by _wake
        self._waiting = 0  # threads with nothing to do; guarded by _wake
        self._closed = False  # guarded by _wake

    def submit(self, call: Callable[[], T]) -> "Future[T]":
        """Run `call` on a lane; while all lanes are stuck it waits, and a cancelled future is never run."""
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
            self._queue.append(run)
            if self._waiting < len(self._queue) and self._threads < self._width:
                self._threads += 1
                threading.Thread(target=self._work, name=f"{self._name}-{self._threads}", daemon=True).start()
            self._wake.notify()
        return future

    def close(self) -> None:
        """Let the threads end once they have nothing left to do."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()

    def _work(self) -> None:
        while True:
            with self._wake:
                self._waiting += 1
                while not self._queue and not self._closed:
                    self._wake.wait()
                self._waiting -= 1
                if not self._queue:
                    return
                run = self._queue.popleft()
            run()
