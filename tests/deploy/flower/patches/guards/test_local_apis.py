"""An API of this machine gets no content from a sender that it does not know."""

import asyncio
import importlib
from types import SimpleNamespace

import pytest

from deploy.fleet import protocol
from deploy.flower.commands import CONTROL_SECRET, guarded
from deploy.flower.flwr_cli import remote, write_connection
from deploy.flower.patches.guards import local_apis


@pytest.fixture
def authentication(tmp_path, monkeypatch):
    """Return the control API's authentication, which Flower loads as its own; the secret is "s3cret"."""
    (tmp_path / "secret").write_text("s3cret\n")
    for name, value in guarded(tmp_path / "secret").items():
        monkeypatch.setenv(name, value)
    config = importlib.import_module(local_apis._CONFIG)
    monkeypatch.setattr(config, "get_control_authn_ee_plugins", config.get_control_authn_ee_plugins)
    local_apis.demand_secret()
    return config.load_control_authn_plugin()


def sent(api, path, headers):
    """Return the content that an API receives of a request with the content "content"."""
    seen = []
    messages = [{"type": "http.request", "body": b"content"}, {"type": "http.disconnect"}]

    async def receive():
        return messages.pop(0)

    async def app(scope, receive, send):
        seen.append((await receive())["body"])
        assert (await receive())["type"] == "http.disconnect"

    encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    scope = {"type": "http", "path": path, "headers": encoded}
    asyncio.run(local_apis.Guard(app, api)(scope, receive, None))
    return seen[0]


def test_only_the_owner_of_the_secret_or_of_a_task_is_read(authentication):
    state = SimpleNamespace(get_task_by_token=lambda token: "task" if token == "t0ken" else None)
    api = SimpleNamespace(state=SimpleNamespace(
        account_access_dep=SimpleNamespace(authn_plugin=authentication),
        runtime_state_factory=SimpleNamespace(state=lambda: state),
    ))  # fmt: skip
    control, runtime = "/v1/control/start-run", "/v1/runtime/push-object"
    assert sent(api, control, {"authorization": "Bearer s3cret"}) == b"content"
    assert sent(api, runtime, {"flwr-task-token": "t0ken"}) == b"content"
    assert sent(api, "/v1/runtime/acquire-task", {"content-length": "65536"}) == b"content"
    for path, headers in (
        (control, {}),
        (control, {"authorization": "Bearer s3cre"}),
        (control, {"authorization": "Bearer \xff"}),
        (control, {"authorization": "Basic s3cret"}),
        (control, {"flwr-task-token": "t0ken", "content-length": "7"}),
        (runtime, {"flwr-task-token": "other", "content-length": "7"}),
        (runtime, {}),
        (runtime, {"content-length": "65537"}),
        (runtime, {"content-length": "-1"}),
        (runtime, {"content-length": "7", "transfer-encoding": "chunked"}),
    ):
        assert sent(api, path, headers) == b"", (path, headers)
    del api.state.account_access_dep  # a SuperNode, which has no control API
    assert sent(api, control, {"authorization": "Bearer s3cret"}) == b""


def test_flower_authenticates_the_owner_of_the_secret(authentication):
    key = protocol.ACCESS_TOKEN
    known, account = authentication.validate_tokens_in_metadata([(key, "s3cret")])
    assert known
    assert account is not None
    for metadata in ([], [(key, "")], [(key, "s3cret ")], [("other", "s3cret")]):
        assert authentication.validate_tokens_in_metadata(metadata) == (False, None)


@pytest.mark.parametrize("content", [None, "", "\n"])
def test_without_a_secret_nothing_starts(tmp_path, monkeypatch, content):
    monkeypatch.delenv(CONTROL_SECRET, raising=False)
    with pytest.raises(SystemExit, match=f"{CONTROL_SECRET} = None: must name the file"):
        local_apis.demand_secret()
    if content is not None:
        (tmp_path / "secret").write_text(content)
    monkeypatch.setenv(CONTROL_SECRET, str(tmp_path / "secret"))
    with pytest.raises(SystemExit, match="must name the file with the secret"):
        local_apis.demand_secret()


def test_a_task_is_given_to_nobody_unless_an_executor_has_a_secret(monkeypatch):
    for module, given in (("flwr.supernode.main", None), ("flwr.supernode.main", b"secret")):
        main = importlib.import_module(module)
        monkeypatch.setattr(main, "create_app", main.create_app)
        local_apis.guard(module)
        api = main.create_app(state_factory=None, superexec_auth_secret=given)
        assert api.state.superexec_auth_secret == given or (given is None and api.state.superexec_auth_secret)
        assert api.user_middleware[0].cls is local_apis.Guard


def test_flwr_finds_the_secret_in_a_file_that_only_its_owner_reads(tmp_path, monkeypatch):
    (tmp_path / "secret").write_text("s3cret\n")
    for _ in range(2):
        write_connection(tmp_path / "home", "c", remote("127.0.0.1:9", tmp_path), tmp_path / "secret")
    file = tmp_path / "home" / "credentials.yaml"
    assert file.stat().st_mode & 0o777 == 0o600
    utils = importlib.import_module("flwr.cli.utils")
    store = importlib.import_module("flwr.supercore.credential_store.file_credential_store")
    monkeypatch.setattr(store, "CREDENTIAL_FILE_PATH", file)
    plugin = utils.load_cli_auth_plugin_from_connection("127.0.0.1:9")
    plugin.load_tokens()
    assert plugin.access_token == "s3cret"
