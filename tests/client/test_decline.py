"""A client that does not want to train is not selected until it is back."""

from ..server.test_apps import federation


def test_a_paused_client_is_not_selected_until_it_is_back(tmp_path):
    """It is paused before round 1 and is back in round 2; it declines to train in round 3."""
    pause = tmp_path / "paused"
    pause.touch()
    asked = []

    def answering(message):
        if message.metadata.dst_node_id != 1001:
            return
        asked.append(message.metadata.message_type)
        if len(asked) == 3:  # asked before round 1, in round 1 and in round 2
            pause.unlink()
        if len(asked) == 5:  # after it trained in round 2
            pause.touch()
        if len(asked) == 7:  # asked in rounds 4 and 5
            pause.unlink()

    lines = federation(
        tmp_path / "out", 2, node_configs={1: {"pause-file": str(pause)}}, before_answer=answering,
        clients_per_round=2, num_rounds=6, selector="uniform",
    )  # fmt: skip
    rounds = [line for line in lines if line["type"] == "round"][1:]
    assert asked == [*["query.status"] * 3, "train", "train", *["query.status"] * 2, "train", "train"]
    assert [line["num_available"] for line in rounds] == [1, 2, 2, 1, 2, 2]
    assert "client-01" not in rounds[0]["client_ids"]
    assert [f["reason"] for f in rounds[2]["failures"]] == ["it does not want to train now"]
    assert [bool(line["failures"]) for line in rounds] == [False, False, True, False, False, False]
