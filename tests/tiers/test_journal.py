"""The journal: whatever happens to its file, what is read is a prefix of what was written."""

import errno
import os
import random
from contextlib import closing
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlake.base.errors import StoreFormatError
from kvlake.testing.faults import FOREVER, Fault, FaultyDevice
from kvlake.tiers.disk import Device, journal
from kvlake.tiers.disk.journal import Frame, Journal, Origin

NAME, PURPOSE = "some.log", b"purpose1"
ORIGIN = Origin(PURPOSE, bytes(range(16)), 42)
FRAMES = [Frame(1, b"one" * 20), Frame(2, b""), Frame(1, b"x"), Frame(7, bytes(100)), Frame(2, b"last")]


@pytest.fixture(autouse=True, scope="module")
def no_waiting_for_the_disk():
    """No power is cut here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fdatasync", lambda fd: None)
        patch.setattr("os.fsync", lambda fd: None)
        yield


@pytest.fixture
def device(tmp_path):
    with closing(FaultyDevice(tmp_path, direct=False)) as device:
        yield device


@pytest.fixture(scope="module")
def shared_device(tmp_path_factory):
    with closing(Device(tmp_path_factory.mktemp("journal"), direct=False)) as device:
        yield device


def written(device, frames=FRAMES):
    """The bytes of a log that holds `frames`, each appended alone."""
    log = Journal.create(device, NAME, ORIGIN)
    for frame in frames:
        log.append([frame])
    log.close()
    return (device.root / NAME).read_bytes()


def read(device):
    """The frames that are found and the bytes of torn tail, or None."""
    loaded = Journal.load(device, NAME, PURPOSE)
    if loaded is None:
        return None
    log, frames, torn = loaded
    assert log.origin == ORIGIN
    log.close()
    return frames, torn


def read_from(device, raw):
    (device.root / NAME).write_bytes(raw)
    return read(device)


def test_what_was_written_is_read(device):
    written(device)
    assert read(device) == (FRAMES, 0)


def test_a_log_is_made_with_frames_in_it(device):
    Journal.create(device, NAME, ORIGIN, FRAMES).close()
    assert read(device) == (FRAMES, 0)


def test_no_log_is_none(device):
    assert read(device) is None


def test_cut_anywhere_it_is_a_prefix_and_goes_on_from_there(device):
    raw = written(device)
    header = len(written(device, []))
    lengths = [len(written(device, FRAMES[:count])) for count in range(len(FRAMES) + 1)]
    for size in range(len(raw)):
        found = read_from(device, raw[:size])
        if size < header:
            assert found is None
            continue
        whole = sum(length <= size for length in lengths) - 1
        assert found == (FRAMES[:whole], size - lengths[whole])
        log, _, _ = Journal.load(device, NAME, PURPOSE)
        log.cut_tail()
        log.append([Frame(3, b"after")])
        log.close()
        assert read(device) == ([*FRAMES[:whole], Frame(3, b"after")], 0)


def test_with_a_bit_flipped_anywhere_it_is_a_prefix(device):
    raw = written(device)
    for at in range(len(raw)):
        bad = bytearray(raw)
        bad[at] ^= 1 << at % 8
        found = read_from(device, bytes(bad))
        if found is not None:
            assert found[0] == FRAMES[: len(found[0])] != FRAMES


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=400))
def test_random_bytes_are_no_log(shared_device, data):
    assert read_from(shared_device, data) is None


@settings(max_examples=200, deadline=None)
@given(data=st.binary(min_size=1, max_size=400))
def test_random_bytes_behind_a_log_are_a_torn_tail(shared_device, data):
    assert read_from(shared_device, written(shared_device) + data) == (FRAMES, len(data))


def test_frames_of_another_log_do_not_follow(device):
    mine = written(device)
    Journal.create(device, NAME, Origin(PURPOSE, bytes(16), 42), FRAMES).close()
    other = (device.root / NAME).read_bytes()
    header = len(written(device, []))
    assert read_from(device, mine[:header] + other[header:]) == ([], len(other) - header)


@pytest.mark.parametrize("seed", range(20))
def test_frames_out_of_order_do_not_follow(device, seed):
    raw = written(device)
    ends = [len(written(device, FRAMES[:count])) for count in range(len(FRAMES) + 1)]
    pieces = [raw[start:end] for start, end in pairwise(ends)]
    order = random.Random(seed).sample(range(len(pieces)), len(pieces))
    whole = next((at for at, number in enumerate(order) if at != number), len(order))
    frames, _ = read_from(device, raw[: ends[0]] + b"".join(pieces[number] for number in order))
    assert frames == FRAMES[:whole]


class TestOtherFormats:
    def test_another_version_is_an_error_that_says_so(self, device, monkeypatch):
        monkeypatch.setattr(journal, "FORMAT_VERSION", 99)
        written(device)
        monkeypatch.undo()
        with pytest.raises(StoreFormatError, match=r"format 99; this kvlake reads .* of format 1"):
            read(device)

    def test_another_purpose_too(self, device):
        written(device)
        with pytest.raises(StoreFormatError, match="purpose1"):
            Journal.load(device, NAME, b"purpose2")


class TestFailedAppend:
    def test_the_log_ends_where_it_did(self, device):
        log = Journal.create(device, NAME, ORIGIN, FRAMES)
        for moved in (0, 1, 50, 1000):
            device.faults.add(Fault("write", errno=errno.ENOSPC, moved_bytes=moved))
            with pytest.raises(OSError, match="injected"):
                log.append([Frame(1, bytes(60))])
            assert read(device)[0] in (FRAMES, [*FRAMES, Frame(1, bytes(60))])
        log.append([Frame(1, b"good")])
        log.close()
        assert read(device)[0] == [*FRAMES, Frame(1, b"good")]

    def test_a_frame_left_over_does_not_follow_a_later_one(self, device):
        log = Journal.create(device, NAME, ORIGIN)
        device.faults.add(Fault("sync", errno=errno.EIO))
        with pytest.raises(OSError, match="injected"):
            log.append([Frame(1, b"aaaa"), Frame(2, b"stale")])
        log.append([Frame(1, b"bbbb")])
        log.close()
        assert read(device)[0] == [Frame(1, b"bbbb")]

    @pytest.mark.parametrize("where", ["write", "sync"])
    def test_a_failed_rewrite_leaves_the_old_log(self, device, where):
        written(device)
        device.faults.add(Fault(where, errno=errno.EIO, name=".new"))
        with pytest.raises(OSError, match="injected"):
            Journal.create(device, NAME, ORIGIN, [Frame(5, b"new")])
        assert read(device) == (FRAMES, 0)
        Journal.create(device, NAME, ORIGIN, [Frame(5, b"new")]).close()
        assert read(device) == ([Frame(5, b"new")], 0)

    def test_what_comes_in_pieces_is_read_whole_or_not_at_all(self, device, monkeypatch):
        written(device, frames := [Frame(1, bytes(10_000)), Frame(2, b"last")])
        real = os.preadv
        monkeypatch.setattr(os, "preadv", lambda fd, buffers, offset: real(fd, [buffers[0][:4096]], offset))
        assert read(device) == (frames, 0)

        def with_a_bad_spot(fd, buffers, offset):
            if offset:
                raise OSError(errno.EIO, "bad spot")
            return real(fd, [buffers[0][:4096]], offset)

        monkeypatch.setattr(os, "preadv", with_a_bad_spot)
        with pytest.raises(OSError, match="bad spot"):
            read(device)

    def test_what_cannot_be_read_is_an_error_and_not_a_torn_tail(self, device):
        written(device)
        device.faults.add(Fault("read", errno=errno.EIO, times=FOREVER))
        with pytest.raises(OSError, match="injected"):
            read(device)
        device.faults.clear()
        assert read(device) == (FRAMES, 0)
