"""The manifests in deploy/kubernetes/ fit Kubernetes' schemas, each other, and the roles of the containers.

No Kubernetes is needed: `lightkube-models` holds the OpenAPI schemas as dataclasses.
"""

import base64
import dataclasses
import importlib
import json
import os
import re
import subprocess
import sys
import typing
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from cryptography import x509

from deploy import container
from deploy.container import __main__ as roles
from deploy.container import setup

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "kubernetes"
# The mode in which Kubernetes shows secrets to the user of a pod, by its group.
GROUP_READS = 0o440


@pytest.fixture(scope="module", autouse=True)
def models():
    """Let the dataclasses be imported without `lightkube`, the client for which they were made."""
    schema = ModuleType("lightkube.core.schema")
    vars(schema).update(DictMixin=object, dataclass=dataclasses.dataclass, field=dataclasses.field)
    sys.modules.update({"lightkube.core": ModuleType("lightkube.core"), "lightkube.core.schema": schema})


def model_of(manifest):
    group = manifest["apiVersion"].replace(".k8s.io", "").replace("/", "_")
    module = importlib.import_module(f"lightkube.models.{'core_v1' if group == 'v1' else group}")
    return getattr(module, manifest["kind"])


def check(kind, value, where):
    """Fail unless a value fits a type of the schemas, without an unknown, missing or wrong field."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Union:
        kinds = [each for each in arguments if each is not type(None)]
        if len(kinds) == 1:
            check(kinds[0], value, where)
            return
        assert type(value) in kinds, f"{where}: {value!r} is none of {kinds}"
    elif origin is list:
        assert isinstance(value, list), f"{where}: {value!r} is no list"
        for number, each in enumerate(value):
            check(arguments[0], each, f"{where}[{number}]")
    elif origin is dict:
        assert isinstance(value, dict), f"{where}: {value!r} is no map"
        for key, each in value.items():
            check(arguments[0], key, where)
            check(arguments[1], each, f"{where}.{key}")
    elif dataclasses.is_dataclass(kind):
        assert isinstance(value, dict), f"{where}: {value!r} is no {kind.__name__}"
        types = typing.get_type_hints(kind)
        fields = {field.metadata.get("json", field.name): field for field in dataclasses.fields(kind)}
        required = {
            name
            for name, field in fields.items()
            if field.default is field.default_factory is dataclasses.MISSING
        }
        assert value.keys() <= fields.keys(), f"{where}: unknown: {value.keys() - fields.keys()}"
        assert required <= value.keys(), f"{where}: missing: {required - value.keys()}"
        for name, each in value.items():
            check(types[fields[name].name], each, f"{where}.{name}")
    else:
        assert type(value) is kind, f"{where}: {value!r} is no {kind}"


def manifests():
    return [
        each
        for file in sorted(FOLDER.glob("*.yaml"))
        for each in yaml.safe_load_all(file.read_text())
        if each is not None
    ]


def of_kind(*kinds):
    return [each for each in manifests() if each["kind"] in kinds]


def workloads():
    return of_kind("Deployment", "StatefulSet", "Job")


def pod_of(workload):
    return workload["spec"]["template"]["spec"]


def labels_of(workload):
    return workload["spec"]["template"]["metadata"]["labels"]


def selected(selector):
    found = [each for each in workloads() if selector.items() <= labels_of(each).items()]
    assert found, f"{selector} selects no pod"
    return found


def port_names(workload):
    return {port["name"] for each in pod_of(workload)["containers"] for port in each.get("ports", ())}


def test_every_manifest_fits_the_schemas():
    found = manifests()
    for each in found:
        check(model_of(each), each, f"{each['kind']} {each['metadata']['name']}")
    names = [(each["kind"], each["metadata"]["name"]) for each in found]
    assert len(set(names)) == len(names) > 10
    assert {kind for kind, _ in names} >= {"StatefulSet", "Deployment", "Job", "PodDisruptionBudget"}


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        ("metadata.nam", "x", "unknown"),
        ("spec.replicas", "2", "is no <class 'int'>"),
        ("spec.template.spec.containers", {}, "is no list"),
        ("spec.selector", None, "is no LabelSelector"),
        ("spec", {"replicas": 2}, "missing"),
    ],
)
def test_the_check_finds_mistakes(path, value, why):
    (manifest, *_) = of_kind("Deployment")
    *parents, name = path.split(".")
    at = manifest
    for each in parents:
        at = at[each]
    at[name] = value
    with pytest.raises(AssertionError, match=why):
        check(model_of(manifest), manifest, "Deployment")


def test_names_refer_to_each_other():
    for each in workloads():
        if each["kind"] != "Job":
            assert each["spec"]["selector"]["matchLabels"].items() <= labels_of(each).items()
    for service in of_kind("Service"):
        for workload in selected(service["spec"]["selector"]):
            assert {port["targetPort"] for port in service["spec"]["ports"]} <= port_names(workload)
    for budget in of_kind("PodDisruptionBudget"):
        (workload,) = selected(budget["spec"]["selector"]["matchLabels"])
        assert budget["spec"]["maxUnavailable"] < workload["spec"]["replicas"]
    for policy in of_kind("NetworkPolicy"):
        (workload,) = selected(policy["spec"]["podSelector"]["matchLabels"])
        for rule in policy["spec"]["ingress"]:
            assert {port["port"] for port in rule["ports"]} <= port_names(workload)
            for peer in rule.get("from", ()):
                selected(peer["podSelector"]["matchLabels"])
    claims = {each["metadata"]["name"] for each in of_kind("PersistentVolumeClaim")}
    for workload in workloads():
        pod = pod_of(workload)
        templates = workload["spec"].get("volumeClaimTemplates", ())
        volumes = {each["name"] for each in (*pod["volumes"], *(each["metadata"] for each in templates))}
        mounted = {mount["name"] for each in pod["containers"] for mount in each["volumeMounts"]}
        assert mounted == volumes
        used = {
            v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"] if "persistentVolumeClaim" in v
        }
        assert used <= claims
        for term in pod.get("affinity", {}).get("podAffinity", {}).values():
            selected(term[0]["labelSelector"]["matchLabels"])


def test_secrets_lie_where_the_roles_read_them_and_no_pod_has_the_authoritys_key():
    for workload in workloads():
        pod = pod_of(workload)
        volumes = {each["name"]: each["secret"] for each in pod["volumes"] if "secret" in each}
        for each in pod["containers"]:
            for mount in each["volumeMounts"]:
                if (volume := volumes.get(mount["name"])) is None:
                    continue
                assert mount["readOnly"]
                files = setup.SECRETS[volume["secretName"]]
                assert {file.parent for file in files} == {Path(mount["mountPath"])}
                names = {file.name for file in files}
                assert {item["key"] for item in volume.get("items", ())} <= names
                assert "ca.key" not in names
                if names != {"ca.crt"}:
                    assert volume["defaultMode"] == GROUP_READS
    (superlink,) = selected({"role": "superlink"})
    address = {each["name"]: each["value"] for each in pod_of(superlink)["containers"][0]["env"]}
    assert f"@{setup.DATABASE_HOST}/" in address["COHORT_DATABASE"]
    assert f"sslrootcert={container.AUTHORITY}" in address["COHORT_DATABASE"]
    services = {each["metadata"]["name"] for each in of_kind("Service")}
    assert services == {container.FLEET_HOST, container.CONTROL_HOST, setup.DATABASE_HOST}


def test_the_containers_have_known_roles_and_settings():
    sources = "".join(file.read_text() for file in (ROOT / "deploy" / "container").glob("*.py"))
    ports = {container.FLEET_PORT, container.CONTROL_PORT, 9464, 5432}
    for workload in workloads():
        for each in pod_of(workload)["containers"]:
            assert {port["containerPort"] for port in each.get("ports", ())} <= ports
            if each["image"].startswith("cohort-server:"):
                assert each["args"][0] in roles.ROLES
                for variable in each.get("env", ()):
                    assert f'"{variable["name"]}"' in sources, variable
            else:
                assert re.fullmatch(r"postgres:\d+", each["image"])


def test_every_pod_is_locked_down():
    """They fit the level "restricted" of Kubernetes' pod security standards."""
    for workload in workloads():
        pod = pod_of(workload)
        assert not pod["automountServiceAccountToken"]
        assert not pod["enableServiceLinks"]
        settings = pod["securityContext"]
        assert settings["runAsNonRoot"]
        assert settings["runAsUser"] > 0
        assert settings["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        assert not any("hostPath" in each for each in pod["volumes"])
        for each in pod["containers"]:
            assert each["securityContext"] == {
                "readOnlyRootFilesystem": True,
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }
            assert each["resources"].keys() == {"requests", "limits"}


def printed(folder, *names):
    done = subprocess.run(
        [sys.executable, "-m", "deploy.container", "setup", "secrets", *names],
        cwd=ROOT,
        env={**os.environ, "COHORT_VOLUMES": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == (0 if names else 2), done.stderr
    return json.loads(done.stdout) if names else done.stderr


def test_the_secrets_are_printed_and_stay_the_same_but_for_certificates(tmp_path):
    first = printed(tmp_path / "keys", "fleet.example.org")
    assert first["kind"] == "List"
    data = {}
    for each in first["items"]:
        check(model_of(each), each, "Secret")
        data[each["metadata"]["name"]] = {k: base64.b64decode(v) for k, v in each["data"].items()}
    assert {name: set(files) for name, files in data.items()} == {
        name: {file.name for file in files} for name, files in setup.SECRETS.items()
    }
    authority = x509.load_pem_x509_certificate(data["cohort-authority"]["ca.crt"])
    for name, hosts in {
        "superlink": {container.FLEET_HOST, container.CONTROL_HOST, "fleet.example.org"},
        "database": {setup.DATABASE_HOST},
    }.items():
        certificate = x509.load_pem_x509_certificate(data[f"cohort-{name}"]["server.pem"])
        certificate.verify_directly_issued_by(authority)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert set(names.get_values_for_type(x509.DNSName)) == {"localhost", *hosts}
    key = (tmp_path / "keys" / "server" / "private" / "ca.key").read_text()
    assert base64.b64encode(key.encode()).decode() not in json.dumps(first)

    assert printed(tmp_path / "keys", "fleet.example.org") == first
    second = {each["metadata"]["name"]: each for each in printed(tmp_path / "keys", "10.0.0.1")["items"]}
    changed = [each["metadata"]["name"] for each in first["items"] if each not in second.values()]
    assert changed == ["cohort-superlink"]
    assert printed(tmp_path / "none").startswith("usage:")
    assert not (tmp_path / "none").exists()
