"""Registered nodes that send a request as fast as they can, in a process of their own."""

import json
import sys
import threading
import time
from pathlib import Path
from subprocess import PIPE, Popen

import grpc

CONNECTIONS = 4  # of each node
AT_ONCE = 8  # requests under way on each connection


class Flood:
    """A flood from several nodes at once. Use it as a context manager, entered once all budgets are spent.

    Parameters
    ----------
    superlink : SuperLink
        The server that is flooded.
    requests : dict[Node, protobuf message]
        The request that each node repeats.
    method : str
        The method of the requests.
    """

    def __init__(self, superlink, requests, method):
        nodes = [
            {
                "headers": [
                    [name, value.hex() if isinstance(value, bytes) else value]
                    for name, value in node.metadata
                ],
                "body": request.SerializeToString().hex(),
            }
            for node, request in requests.items()
        ]
        self._task = {
            "address": superlink.address,
            "authority": str(superlink.authority),
            "path": f"/flwr.proto.Fleet/{method}",
            "nodes": nodes,
        }
        self.codes = {}
        """How many requests have ended with each status, once the flood is over."""

    def __enter__(self):
        self._process = Popen([sys.executable, "-m", __name__], stdin=PIPE, stdout=PIPE, text=True)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(self._task) + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "all budgets are spent\n"
        return self

    def __exit__(self, *_):
        output, _errors = self._process.communicate("over\n", timeout=60)
        self.codes = json.loads(output)


def main():
    task = json.loads(sys.stdin.readline())
    credentials = grpc.ssl_channel_credentials(Path(task["authority"]).read_bytes())
    codes = {}
    lock, over = threading.Lock(), threading.Event()
    spent = {node: threading.Event() for node in range(len(task["nodes"]))}

    def send(ask, number, body, headers):
        def done(call):
            code = call.code().name
            if "sends too many requests" in call.details():
                spent[number].set()
            with lock:
                codes[code] = codes.get(code, 0) + 1
            if not over.is_set():
                send(ask, number, body, headers)

        ask.future(body, metadata=headers, timeout=30).add_done_callback(done)

    for number, node in enumerate(task["nodes"]):
        headers = [
            (name, bytes.fromhex(value) if name.endswith("-bin") else value)
            for name, value in node["headers"]
        ]
        for _ in range(CONNECTIONS):
            channel = grpc.secure_channel(
                task["address"], credentials, [("grpc.use_local_subchannel_pool", 1)]
            )
            for _ in range(AT_ONCE):
                send(channel.unary_unary(task["path"]), number, bytes.fromhex(node["body"]), headers)
    are_spent = all(each.wait(60) for each in spent.values())
    print("all budgets are spent" if are_spent else "a budget is left", flush=True)
    sys.stdin.readline()
    over.set()
    time.sleep(0.5)
    with lock:
        print(json.dumps(codes), flush=True)


if __name__ == "__main__":
    main()
