"""The quarantine list on the memory twin and on DynamoDB: written once, released, written anew."""

from planaria.core.ledger import Ledger
from planaria.core.ports import Table
from planaria.core.quarantine import Found, Quarantine, barred

NODE, HOST = "i-0123456789abcdef0", "h-0123456789abcdef0"
NOW = 1_793_610_845.5


def test_a_quarantine_from_its_beginning_to_its_end(table: Table) -> None:
    ledger, quarantine = Ledger(table), Quarantine(table)
    row = ledger.note_node(NODE, {"host": HOST, "name": "demo-1", "zone": "us-east-1a"})
    first = Found("GPU 3: memory test failed", f"{NODE}-1", NOW)
    for _ in range(2):
        quarantine.put(row, first)
    assert {entry["hardware"] for entry in quarantine.all(NOW)} == {NODE, HOST}
    assert "memory test failed" in quarantine.against(HOST, NOW)
    assert "memory test failed" in barred(ledger.node(NODE) or {}, NOW)
    assert sorted(quarantine.release(NODE, "ada", "", NOW + 1)) == sorted([NODE, HOST])
    quarantine.put(row, first)
    assert quarantine.all(NOW + 2) == [] and quarantine.against(HOST, NOW + 2) == ""
    assert "quarantined" not in (ledger.node(NODE) or {})
    quarantine.put(row, Found("again", f"{NODE}-2", NOW + 3))
    assert {entry["reason"] for entry in quarantine.all(NOW + 3)} == {"again"}
    assert len(quarantine.all(NOW + 3, ended=True)) == 2
