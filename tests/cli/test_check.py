"""`kvlake check`: what is whole is called whole, what is not is found, and fixed when asked."""

import pytest

from kvlake.cli import check as check_module
from kvlake.tiers.tier import CheckReport, Problem

KEY = bytes(range(16))


def damage(path):
    """Spoil the first payload of the first segment: its bytes are random, those of headers are mostly zeros."""
    segment = min(path.glob("*.seg"))
    content = segment.read_bytes()
    page = next(at for at in range(4096, len(content), 4096) if content.count(0, at, at + 4096) < 100)
    with segment.open("r+b") as file:
        file.seek(page + 100)
        file.write(b"spoilt")


def test_a_whole_store_is_ok(run, run_json, store):
    result = run("check", store)
    assert "disk: 7 blocks, 56.0 KiB: ok" in result.stdout
    assert "reading" in result.stderr
    assert run_json("check", store) == [
        {"tier": "disk", "ok": True, "blocks": 7, "bytes": 7 * 8192, "problems": [], "fixed": 0}
    ]


def test_damage_is_found_and_fixed(run, run_json, store):
    damage(store)
    assert "1 x fails its checksum (such as block" in run("check", store, code=1).stdout
    (report,) = run_json("check", store, code=1)
    assert not report["ok"]
    assert [each["what"] for each in report["problems"]] == ["fails its checksum"]
    assert "1 fixed" in run("check", store, "--fix").stdout
    assert ": ok" in run("check", store).stdout


def test_check_without_fix_changes_nothing(run, store):
    damage(store)
    before = {file.name: file.read_bytes() for file in store.iterdir()}
    run("check", store, code=1)
    assert {file.name: file.read_bytes() for file in store.iterdir()} == before


def test_check_works_beside_the_owner_and_fix_does_not(run, owner, store):
    assert ": ok" in run("check", store).stdout
    assert "in use by process" in run("check", store, "--fix", code=1).stderr


def test_fix_makes_no_store(run, tmp_path):
    assert "no store" in run("check", tmp_path / "new", "--fix", code=1).stderr
    assert not (tmp_path / "new").exists()


def test_what_the_owner_moved_meanwhile_is_no_damage(run, store, monkeypatch):
    """A first look that raced with the owner: the second does not see the same."""
    answers = iter(
        [
            [CheckReport(tier="disk", blocks=2, nbytes=2, problems=(Problem(KEY, "fails its checksum"),))],
            [CheckReport(tier="disk", blocks=2, nbytes=2, problems=(Problem(bytes(16), "cannot be read"),))],
        ]
    )
    monkeypatch.setattr("kvlake.store.store.Store.check", lambda self, fix=False: next(answers))
    assert "ok" in run("check", store).stdout


@pytest.mark.parametrize("fixed", [0, 2])
def test_many_problems_of_a_kind_are_one_line(capsys, fixed):
    problems = (Problem(KEY, "is torn"), Problem(bytes(16), "is torn"), Problem(None, "the count is off"))
    check_module._print(CheckReport(tier="disk", blocks=3, nbytes=1024, problems=problems, fixed=fixed))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "disk: 3 blocks, 1.00 KiB: 3 problems" + (", 2 fixed" if fixed else "")
    assert lines[1:] == [f"  2 x is torn (such as block {KEY.hex()})", "  1 x the count is off"]
