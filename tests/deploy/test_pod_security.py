"""Pods keep to the Pod Security Standard "restricted", but for the folder of the machine in (C)."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
from manifests import EXAMPLES, OVERLAYS, Document, containers_of, documents_of, pod_templates, pods_of

NODE = [name for name in OVERLAYS if name.endswith("/node")]
# The volumes that "restricted" allows (Kubernetes 1.37).
VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret",
}  # fmt: skip


def violations(pod: Document) -> set[str]:
    """What "restricted" forbids, "baseline" included: each with the container or volume that has it."""
    spec = pod["spec"]
    found = {field for field in ("hostNetwork", "hostPID", "hostIPC") if spec.get(field)}
    for volume in spec.get("volumes", []):
        found |= {f"volume {volume['name']}: {kind}" for kind in set(volume) - {"name"} - VOLUMES}
    of_pod = spec.get("securityContext", {})
    found |= {f"pod: {field}" for field in ("seLinuxOptions", "sysctls", "windowsOptions") if field in of_pod}
    for container in containers_of(pod):
        own = container.get("securityContext", {})
        both = {**of_pod, **own}
        capabilities = own.get("capabilities", {})
        wrong = {
            "privileged": bool(own.get("privileged")),
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is not False,
            "runAsNonRoot": both.get("runAsNonRoot") is not True,
            "runAsUser": both.get("runAsUser") == 0,
            "capabilities.drop": "ALL" not in capabilities.get("drop", []),
            "capabilities.add": not set(capabilities.get("add", [])) <= {"NET_BIND_SERVICE"},
            "seccompProfile": both.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"),
            "procMount": own.get("procMount", "Default") != "Default",
            "seLinuxOptions": "seLinuxOptions" in own,
            "hostPort": any(port.get("hostPort") for port in container.get("ports", [])),
        }
        found |= {f"{container['name']}: {control}" for control, is_wrong in wrong.items() if is_wrong}
    return found


@pytest.mark.parametrize("name", sorted({*OVERLAYS, *EXAMPLES} - set(NODE)))
def test_pods_are_restricted(name: str) -> None:
    for pod in pods_of(name):
        assert violations(pod) == set()
    for document in documents_of(name):
        if document["kind"] == "Namespace":
            assert document["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


@pytest.mark.parametrize("name", NODE)
def test_the_folder_of_the_machine_is_the_one_exception(name: str) -> None:
    folder = {"volume gradsync: hostPath"}
    ownership = {"folder: runAsNonRoot", "folder: runAsUser", "folder: capabilities.add"}
    for document in documents_of(name):
        for pod in pod_templates(document):
            assert violations(pod) == folder | (ownership if document["kind"] == "DaemonSet" else set())


@pytest.mark.parametrize("name", [*OVERLAYS, *EXAMPLES])
def test_more_than_the_standard_asks_for(name: str) -> None:
    for pod in pods_of(name):
        assert pod["spec"]["automountServiceAccountToken"] is False
        for container in containers_of(pod):
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            # One user for daemon and trainers: no container has its own, but the one that prepares the folder.
            assert container["name"] == "folder" or not {"runAsUser", "runAsGroup"} & set(container["securityContext"])
            limits = container["resources"].get("limits", {}) if "resources" in container else {}
            assert "cpu" not in limits


Spoil = Callable[[Document], object]
SPOILT: dict[str, Spoil] = {
    "hostPID": lambda spec: spec.update(hostPID=True),
    "volume gradsync: hostPath": lambda spec: spec["volumes"].append({"name": "gradsync", "hostPath": {"path": "/"}}),
    "trainer: runAsUser": lambda spec: spec["containers"][0]["securityContext"].update(runAsUser=0),
    "trainer: privileged": lambda spec: spec["containers"][0]["securityContext"].update(privileged=True),
    "trainer: allowPrivilegeEscalation": lambda spec: spec["containers"][0]["securityContext"].pop(
        "allowPrivilegeEscalation"
    ),
    "gradsyncd: runAsNonRoot": lambda spec: spec["initContainers"][0]["securityContext"].update(runAsNonRoot=False),
    "gradsyncd: capabilities.drop": lambda spec: spec["initContainers"][0]["securityContext"].pop("capabilities"),
    "gradsyncd: capabilities.add": lambda spec: spec["initContainers"][0]["securityContext"]["capabilities"].update(
        add=["SYS_PTRACE"]
    ),
    "gradsyncd: seccompProfile": lambda spec: spec["securityContext"].pop("seccompProfile"),
    "gradsyncd: hostPort": lambda spec: spec["initContainers"][0]["ports"][0].update(hostPort=9477),
}


@pytest.mark.parametrize("violation", SPOILT)
def test_a_violation_is_found(violation: str) -> None:
    (pod,) = copy.deepcopy(pods_of("overlays/cpu/sidecar"))
    SPOILT[violation](pod["spec"])
    assert violation in violations(pod)
