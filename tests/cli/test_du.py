"""`kvlake du`."""


def test_du_adds_up(run_json, store):
    found = run_json("du", store)
    disk = found["tiers"]["disk"]
    assert list(found["tiers"]) == ["disk"]
    assert disk["blocks"] == 7
    assert disk["payload_bytes"] == 7 * 8192
    assert disk["payload_bytes"] < disk["used_bytes"] < found["on_disk_bytes"]
    assert disk["capacity_bytes"] > disk["used_bytes"]
    assert found["free_bytes"] > 0
    assert found["io_mode"] in ("direct-aio", "direct-threads", "buffered-threads")
    for sums in (found["tenants"], found["namespaces"]):
        assert sum(each["payload_bytes"] for each in sums.values()) == disk["payload_bytes"]
        assert sum(each["blocks"] for each in sums.values()) == disk["blocks"]


def test_du_names_tenants_and_namespaces(run_json, store):
    found = run_json("du", store)
    assert found["tenants"] == {
        "default": {"blocks": 4, "payload_bytes": 4 * 8192},
        "team": {"blocks": 3, "payload_bytes": 3 * 8192},
    }
    assert list(found["namespaces"]) == ["6e" * 8]
    assert {each["id"]: each["shared_bytes"] for each in found["sessions"]} == {"alice": 16384, "bob": 16384, "007": 0}


def test_du_for_people(run, store):
    output = run("du", store).output
    for words in ("allocated", "capacity", "56.0 KiB", "team", "of it shared", "takes up", "free", "I/O here"):
        assert words in output


def test_du_leaves_the_directory_as_it_was(run, store):
    before = {file.name: file.stat().st_size for file in store.iterdir()}
    run("du", store)
    assert {file.name: file.stat().st_size for file in store.iterdir()} == before


def test_du_works_beside_the_owner(run, owner, store):
    assert "team" in run("du", store).output


def test_du_says_why_io_is_not_direct(run_json, store, tmp_path, monkeypatch):
    monkeypatch.setattr("kvlake.tiers.disk.device._file_system", lambda path: 0x01021994)
    found = run_json("du", store)
    assert found["io_mode"] == "buffered-threads"
    assert "tmpfs" in found["why_not_direct"]


def test_a_tenant_without_a_session_is_known_by_its_digest(run_json, run, store):
    run("rm", store, "bob", "007", "--yes")
    assert run_json("du", store)["tenants"] == {"default": {"blocks": 4, "payload_bytes": 4 * 8192}}
