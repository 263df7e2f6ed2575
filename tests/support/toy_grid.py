"""The in-process grid with nodes that a test writes as functions, and may replace at any time."""

from flwr.app import Context, RecordDict

from simulation.grid import Handler, InProcessGrid, _Node

Node = Handler


class ToyGrid(InProcessGrid):
    """Reads its nodes from `nodes` and `names` whenever it is used, and keeps the messages in `sent`.

    Node ids may be any, also that of the SuperLink.
    """

    def __init__(self, nodes, names=None):
        super().__init__()
        self.nodes = dict(nodes)
        self.names = dict(names or {})
        self.sent = []

    def _read_nodes(self):
        for node_id in self._nodes.keys() - self.nodes.keys():
            self.remove_node(node_id)
        self._nodes = {
            node_id: _Node(handler, self.names.get(node_id, ""), None, 0)
            for node_id, handler in self.nodes.items()
        }

    def get_node_ids(self):
        self._read_nodes()
        return super().get_node_ids()

    def push_messages(self, messages):
        self._read_nodes()
        messages = list(messages)
        ids = super().push_messages(messages)
        self.sent += messages
        return ids

    def pull_messages(self, message_ids):
        self._read_nodes()
        return super().pull_messages(message_ids)


def node_of(app, node_config, run_config):
    """Return a node that runs a ClientApp."""
    context = Context(1, 1, node_config, RecordDict(), run_config)
    return lambda message: app(message, context)
