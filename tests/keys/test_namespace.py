"""A namespace is what it is made of; a fingerprint is of contents, not of names."""

import os
from dataclasses import fields, replace

import pytest

from kvlake.base.errors import ConfigError
from kvlake.keys.namespace import Namespace, weights_fingerprint

MIB = 1 << 20
NAMESPACE = Namespace(
    weights="0123456789abcdef", tokenizer="tok", geometry="32x8x128", dtype="bfloat16", rope="theta=10000",
    layout="hf.dynamic", layout_version=1, block_tokens=64, engine="transformers-5",
)  # fmt: skip


class TestNamespace:
    def test_golden_value(self):
        """Never to be changed."""
        assert NAMESPACE.digest.hex() == "736ff0876ab13abb8dcd3b81fd9a70dd"

    def test_equal_facts_equal_digest(self):
        assert replace(NAMESPACE).digest == NAMESPACE.digest
        assert len(NAMESPACE.digest) == 16

    @pytest.mark.parametrize("name", [field.name for field in fields(Namespace)])
    def test_every_field_counts(self, name):
        value = getattr(NAMESPACE, name)
        other = value + 1 if isinstance(value, int) else value + "x"
        assert replace(NAMESPACE, **{name: other}).digest != NAMESPACE.digest

    def test_text_does_not_run_from_one_field_into_the_next(self):
        one = replace(NAMESPACE, dtype="ab", engine="c")
        assert one.digest != replace(NAMESPACE, dtype="a", engine="bc").digest
        assert one.digest != replace(NAMESPACE, dtype="c", engine="ab").digest

    def test_what_cannot_be_one_is_refused(self):
        with pytest.raises(ConfigError, match="block_tokens must be at least 1, not 0"):
            replace(NAMESPACE, block_tokens=0)
        with pytest.raises(ConfigError, match="weights_fingerprint"):
            replace(NAMESPACE, weights="")


def write(path, size, seed=1):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes((seed + at // MIB) % 256 for at in range(0, size, 4096)).ljust(size, b"\7"))
    return path


def change(path, offset):
    with path.open("r+b") as file:
        byte = os.pread(file.fileno(), 1, offset)
        os.pwrite(file.fileno(), bytes([byte[0] ^ 1]), offset)


@pytest.fixture
def weights(tmp_path):
    return write(tmp_path / "model.safetensors", 3 * MIB + 100)


class TestFingerprint:
    def test_golden_value(self, weights):
        """Never to be changed."""
        assert weights_fingerprint(weights) == "79d4b720544e1b80fba5b55cc6ff75b0"

    def test_a_name_does_not_count(self, weights):
        before = weights_fingerprint(weights)
        renamed = weights.rename(weights.with_name("other.bin"))
        assert weights_fingerprint(renamed) == weights_fingerprint(str(renamed)) == before

    def test_a_folder_of_one_is_that_one(self, weights):
        assert weights_fingerprint(weights.parent) == weights_fingerprint(weights)

    @pytest.mark.parametrize("offset", [0, 4095, MIB, 2 * MIB + 4000, 3 * MIB + 99, 3 * MIB - 3996])
    def test_a_flipped_bit_in_a_sample_counts(self, weights, offset):
        before = weights_fingerprint(weights)
        change(weights, offset)
        assert weights_fingerprint(weights) != before

    def test_any_change_longer_than_the_stride_counts(self, weights):
        before = weights_fingerprint(weights)
        with weights.open("r+b") as file:
            os.pwrite(file.fileno(), bytes(MIB), 700_000)
        assert weights_fingerprint(weights) != before

    def test_the_size_counts(self, tmp_path):
        sizes = [1, 2, 4096, 8192, MIB, 2 * MIB]
        found = {weights_fingerprint(write(tmp_path / f"{size}.bin", size, seed=7)) for size in sizes}
        assert len(found) == len(sizes)

    def test_shards_count_wherever_they_lie_and_other_files_do_not(self, tmp_path):
        for number in range(3):
            write(tmp_path / "one" / f"shard-{number}.safetensors", 5000, seed=number)
            write(tmp_path / "two" / "deep" / f"{9 - number}.gguf", 5000, seed=number)
        write(tmp_path / "two" / "config.json", 100)
        assert weights_fingerprint(tmp_path / "one") == weights_fingerprint(tmp_path / "two")
        write(tmp_path / "two" / "more.pt", 5000, seed=9)
        assert weights_fingerprint(tmp_path / "one") != weights_fingerprint(tmp_path / "two")

    def test_a_link_is_what_it_leads_to(self, weights, tmp_path):
        (tmp_path / "snapshot").mkdir()
        (tmp_path / "snapshot" / "model.safetensors").symlink_to(weights)
        assert weights_fingerprint(tmp_path / "snapshot") == weights_fingerprint(weights)

    def test_a_large_file_is_sampled(self, tmp_path):
        path = tmp_path / "large.gguf"
        with path.open("wb") as file:
            file.truncate(40 << 30)  # takes no room
        before = weights_fingerprint(path)
        change(path, (40 << 30) - 1)
        assert weights_fingerprint(path) != before

    def test_without_weights_it_says_what_it_looked_for(self, tmp_path):
        (tmp_path / "config.json").touch()
        for path in (tmp_path, tmp_path / "nowhere"):
            with pytest.raises(ConfigError, match=r"expected a file or a folder with \.safetensors"):
                weights_fingerprint(path)
