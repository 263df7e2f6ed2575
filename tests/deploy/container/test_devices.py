"""Devices of a cluster in containers are registered and revoked."""

import json
import sys

from deploy.container import devices
from deploy.tls import certificates


def test_devices_are_registered_and_revoked_under_names_of_their_own(tmp_path, monkeypatch, capsys):
    asked = []

    def flwr(*arguments, environment):
        asked.append(arguments)
        return {"success": True, "node-id": "7", "nodes": nodes}

    nodes = [{"node-id": "7", "status": "online"}]

    def do(*arguments):
        monkeypatch.setattr(sys, "argv", ["deploy.container", "devices", *arguments])
        code = devices.main()
        return code, "".join(capsys.readouterr())

    monkeypatch.setattr(devices, "STATE", tmp_path)
    monkeypatch.setattr(devices, "DEVICES", tmp_path / "devices")
    monkeypatch.setattr(devices, "flwr", flwr)
    (tmp_path / "registered").mkdir()
    (tmp_path / "registered" / "client-00").touch()
    certificates.write_client_key(tmp_path, "key")
    key = (tmp_path / "key.pub").read_text().split()
    assert do("register", "pi-1", *key) == (0, "pi-1 is registered (node 7); it comes online by itself\n")
    assert asked.pop()[:4] == ("supernode", "register", "--name", "pi-1")
    assert do("list")[1].split() == ["pi-1", "online"]
    nodes.append({"node-id": "8", "status": "online"})  # the cluster's own client
    assert do("list")[1].split() == ["pi-1", "online"]
    nodes.append({"node-id": "9", "status": "online"})
    assert "node-9" in do("list")[1]
    assert "WARNING                        nodes that are not devices: 2; clients of the" in do("list")[1]
    listed = json.loads(do("list", "--json")[1])
    assert (listed["other_nodes"], listed["own_clients"]) == (2, 1)
    assert [(each["name"], each["state"], each["node_id"]) for each in listed["devices"]] == [
        ("pi-1", "online", "7")
    ]
    assert do("revoke", "node-9") == (0, "node-9 is revoked\n")
    assert asked[-1] == ("supernode", "unregister", "9", "cohort-cluster")
    del nodes[1:]
    assert do("register", "pi-1", *key)[0] == 0  # again: nothing changes
    certificates.write_client_key(tmp_path, "other")
    assert do("register", "pi-1", *(tmp_path / "other.pub").read_text().split())[1].startswith(
        "name = pi-1: registered already"
    )
    assert do("register", "client-00", *key) == (
        2,
        "name = client-00: belongs to a client inside the cluster\n",
    )
    assert do("revoke", "pi-1") == (0, "pi-1 is revoked\n")
    assert asked[-1] == ("supernode", "unregister", "7", "cohort-cluster")
    assert json.loads((tmp_path / "devices" / "revoked.json").read_text()) == ["pi-1"]
    for wrong in ((), ("register", "pi-1"), ("invite", "pi-1")):
        assert do(*wrong) == (2, f"{devices.USAGE}\n")
