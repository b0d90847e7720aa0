"""The kernel queue by itself, and the pool of threads that stands in for it."""

import errno
import mmap
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from kvlake.tiers.disk import aio as aio_module
from kvlake.tiers.disk.aio import AioQueue
from kvlake.tiers.disk.device import ThreadQueue
from kvlake.tiers.disk.job import Job
from kvlake.tiers.tier import PAGE_BYTES, aligned_buffer

DEPTH = 4
PAGES = 64


@pytest.fixture(params=["aio", "threads"])
def queue(request):
    if request.param == "threads":
        with ThreadPoolExecutor(2) as pool:
            yield ThreadQueue(pool, DEPTH)
        return
    try:
        queue = AioQueue(DEPTH)
    except OSError as error:
        pytest.skip(f"no kernel aio here: {error}")
    yield queue
    queue.close()


@pytest.fixture
def file(tmp_path):
    """A file in which page i is filled with the byte i."""
    path = tmp_path / "file"
    path.write_bytes(b"".join(bytes([page]) * PAGE_BYTES for page in range(PAGES)))
    fd = os.open(path, os.O_RDWR)
    yield fd
    os.close(fd)


def reading(fd, page, pages=1):
    buffers = [aligned_buffer(PAGE_BYTES) for _ in range(pages)]
    return Job(fd, page * PAGE_BYTES, buffers, pages * PAGE_BYTES, False, page)


def within(seconds, work):
    """The result of `work`; a failure, not a hang, if it takes longer."""
    result = []
    thread = threading.Thread(target=lambda: result.append(work()), daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "hangs"
    return result[0]


def still_works(queue, fd):
    """Every slot of the queue is free again."""
    jobs = [reading(fd, page) for page in range(3 * DEPTH)]
    done = within(10, lambda: list(queue.run(jobs)))
    assert sorted(job.tag for job, moved in done if moved == PAGE_BYTES) == list(range(3 * DEPTH))


def test_more_jobs_than_slots_all_come_back_with_their_bytes(queue, file):
    done = list(queue.run(reading(file, page, 2) for page in range(PAGES - 1)))
    assert sorted(job.tag for job, _ in done) == list(range(PAGES - 1))
    for job, moved in done:
        assert moved == 2 * PAGE_BYTES
        assert [set(buffer) for buffer in job.buffers] == [{job.tag}, {job.tag + 1}]


def test_writes_arrive(queue, file):
    buffers = [aligned_buffer(PAGE_BYTES) for _ in range(10)]
    for number, buffer in enumerate(buffers):
        buffer[:] = bytes([100 + number]) * PAGE_BYTES
    jobs = [Job(file, 20 * PAGE_BYTES, buffers[:5], 5 * PAGE_BYTES, True, 0)]
    jobs.append(Job(file, 40 * PAGE_BYTES, buffers[5:], 5 * PAGE_BYTES, True, 1))
    assert [moved for _, moved in queue.run(jobs)] == [5 * PAGE_BYTES] * 2
    assert os.pread(file, 5 * PAGE_BYTES, 40 * PAGE_BYTES) == b"".join(buffers[5:])
    assert os.pread(file, PAGE_BYTES, 24 * PAGE_BYTES) == bytes(buffers[4])


def test_no_jobs_are_no_results(queue, file):
    assert list(queue.run([])) == []


def test_the_end_of_the_file_is_a_short_transfer(queue, file):
    results = [moved for _, moved in queue.run([reading(file, PAGES - 1, 3), reading(file, PAGES + 5)])]
    assert sorted(results) == [0, PAGE_BYTES]


def test_an_error_is_a_negative_errno_and_costs_only_its_job(queue, file, tmp_path):
    read_only = os.open(tmp_path / "file", os.O_RDONLY)
    bad = [Job(read_only, 0, [aligned_buffer(PAGE_BYTES)], PAGE_BYTES, True, "bad"), reading(999_999, 0)]
    jobs = [reading(file, 1), *bad, reading(file, 2), reading(file, -3)]
    results = {job.tag: moved for job, moved in queue.run(jobs)}
    os.close(read_only)
    assert results == {1: PAGE_BYTES, "bad": -errno.EBADF, 0: -errno.EBADF, 2: PAGE_BYTES, -3: -errno.EINVAL}
    still_works(queue, file)


def test_leaving_early_waits_for_what_is_in_flight(queue, file):
    jobs = [reading(file, page) for page in range(12)]
    run = queue.run(jobs)
    next(run)
    within(10, run.close)
    still_works(queue, file)
    read = [job.tag for job in jobs if set(job.buffers[0]) == {job.tag}]
    assert len(read) >= 1


def test_a_maker_of_jobs_may_fail(queue, file):
    def jobs():
        yield reading(file, 1)
        yield reading(file, 2)
        raise KeyError("no such segment")

    def work():
        with pytest.raises(KeyError, match="segment"):
            list(queue.run(jobs()))

    within(10, work)
    still_works(queue, file)


def test_jobs_are_drawn_only_as_there_is_room(queue, file):
    drawn = []

    def jobs():
        for page in range(40):
            drawn.append(page)
            yield reading(file, page)

    run = queue.run(jobs())
    next(run)
    assert len(drawn) <= 2 * DEPTH
    run.close()


class TestKernelQueue:
    @pytest.fixture
    def queue(self):
        try:
            queue = AioQueue(DEPTH)
        except OSError as error:
            pytest.skip(f"no kernel aio here: {error}")
        yield queue
        queue.close()

    def test_too_many_buffers_are_refused(self, queue, file):
        jobs = [reading(file, 1), reading(file, 0, 129), reading(file, 2)]
        results = {job.tag: moved for job, moved in queue.run(jobs)}
        assert results == {0: -errno.EINVAL, 1: PAGE_BYTES, 2: PAGE_BYTES}

    def test_128_are_not(self, queue, file):
        job = Job(file, 0, [aligned_buffer(512) for _ in range(128)], 128 * 512, False, 0)
        assert [moved for _, moved in queue.run([job])] == [128 * 512]

    @pytest.mark.parametrize("bad", [lambda fd: reading(fd, 0, 129), lambda fd: reading(999_999, 0)])
    def test_leaving_at_a_refused_job_does_not_wait_for_what_was_never_handed_over(self, queue, file, bad):
        run = queue.run([reading(file, 1), bad(file), reading(file, 2), bad(file), reading(file, 3)])
        while next(run)[1] > 0:
            pass
        within(10, run.close)
        still_works(queue, file)

    def test_memory_is_held_while_the_kernel_may_touch_it(self, queue, file):
        memory = mmap.mmap(-1, PAGE_BYTES)
        run = queue.run([Job(file, 0, [memoryview(memory)], PAGE_BYTES, False, 0), reading(file, 1)])
        with pytest.raises(BufferError):
            memory.close()
        list(run)

    def test_an_unknown_machine_has_none(self, monkeypatch):
        monkeypatch.setattr(aio_module.platform, "machine", lambda: "pdp11")
        with pytest.raises(OSError, match="pdp11") as caught:
            AioQueue(1)
        assert caught.value.errno == errno.ENOSYS

    def test_more_than_the_kernel_has_is_an_error(self):
        with pytest.raises(OSError, match="io_setup failed"):
            AioQueue(1 << 30)
