"""`kvlake du`: a store -> where its bytes are, by tier, tenant, namespace and session."""

import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from kvlake.base.units import format_bytes
from kvlake.cli.places import json_option, look, on_disk_bytes, store_argument
from kvlake.cli.tables import print_json, print_table
from kvlake.store.store import Store
from kvlake.tiers.disk.device import Device
from kvlake.tiers.tier import Record


@click.command
@store_argument
@json_option
def du(store: Path, as_json: bool) -> None:
    """Show where the bytes of a store are: by tier, tenant, namespace and session.

    Payload is what engines put; allocated is payload in whole disk pages, with their descriptors; on disk is what the
    directory takes up, segments being made ahead of need.
    """
    with look(store) as opened:
        found = _measure(store, opened)
    if as_json:
        print_json(found)
        return
    _print(found)


def _measure(path: Path, store: Store) -> dict[str, Any]:
    # The store itself is opened without O_DIRECT for a look; what its owner gets is asked of the directory.
    device = Device(path)
    device.close()
    tiers = {}
    records: list[Record] = []
    for tier in store.tiers():
        held = list(tier.records())
        records += held
        tiers[tier.name] = asdict(tier.usage()) | {"payload_bytes": sum(record.nbytes for record in held)}
    sessions = store.sessions()
    # A block knows its tenant by digest only; the names are those of the sessions.
    names = {store.tenant_digest(info.tenant): info.tenant for info in sessions}
    return {
        "store": str(path),
        "on_disk_bytes": on_disk_bytes(path),
        "free_bytes": shutil.disk_usage(path).free,
        "io_mode": device.io_mode,
        "why_not_direct": device.why_not_direct,
        "tiers": tiers,
        "tenants": _sums(records, lambda record: names.get(record.tenant, record.tenant.hex())),
        "namespaces": _sums(records, lambda record: record.namespace.hex()),
        "sessions": [
            {
                "id": info.id,
                "tenant": info.tenant,
                "payload_bytes": sum(info.bytes_by_tier.values()),
                "shared_bytes": info.shared_bytes,
            }
            for info in sessions
        ],
    }


def _sums(records: Iterable[Record], name_of: Callable[[Record], str]) -> dict[str, dict[str, int]]:
    """Blocks and payload bytes by name, the largest first."""
    blocks: Counter[str] = Counter()
    nbytes: Counter[str] = Counter()
    for record in records:
        blocks[name_of(record)] += 1
        nbytes[name_of(record)] += record.nbytes
    return {name: {"blocks": blocks[name], "payload_bytes": total} for name, total in nbytes.most_common()}


def _print(found: dict[str, Any]) -> None:
    tiers = [
        (name, tier["blocks"], *(format_bytes(tier[f"{kind}_bytes"]) for kind in ("payload", "used", "capacity")))
        for name, tier in found["tiers"].items()
    ]
    print_table(("tier", ">blocks", ">payload", ">allocated", ">capacity"), tiers)
    for title in ("tenant", "namespace"):
        sums = found[title + "s"].items()
        rows = [(name, f"{each['blocks']:,}", format_bytes(each["payload_bytes"])) for name, each in sums]
        click.echo()
        print_table((title, ">blocks", ">payload"), rows)
    # By size here, unlike `ls`: who asks this wants to know what to delete.
    sessions = sorted(found["sessions"], key=lambda each: -each["payload_bytes"])
    rows = [(each["id"], *(format_bytes(each[f"{kind}_bytes"]) for kind in ("payload", "shared"))) for each in sessions]
    click.echo()
    print_table(("session", ">payload", ">of it shared"), rows)
    taken, free = format_bytes(found["on_disk_bytes"]), format_bytes(found["free_bytes"])
    click.echo(f"\n{found['store']} takes up {taken} on disk; the file system has {free} free")
    reason = f" ({found['why_not_direct']})" if found["why_not_direct"] else ""
    click.echo(f"I/O here: {found['io_mode']}{reason}")
