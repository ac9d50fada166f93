"""The manifests of deploy/kubernetes: schemas of the last four minors, of custom kinds, and what belongs together."""

from __future__ import annotations

import copy
import importlib
from typing import Any

import pytest
from manifests import EXAMPLES, OVERLAYS, Document, containers_of, documents_of, is_custom, pod_templates, pods_of

MINORS = ("1.34", "1.35", "1.36", "1.37")
MODELS = {  # what reads a custom kind; each is generated from the schema that its project publishes
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): ("kubeflow_trainer_api.models", "JobsetV1alpha2JobSet"),
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): ("kubeflow_trainer_api.models", "TrainerV1alpha1TrainJob"),
    ("trainer.kubeflow.org/v1alpha1", "ClusterTrainingRuntime"): (
        "kubeflow_trainer_api.models",
        "TrainerV1alpha1ClusterTrainingRuntime",
    ),
    ("monitoring.coreos.com/v1", "PodMonitor"): ("cloudcoil.models.prometheus_operator.v1", "PodMonitor"),
    ("kubeflow.org/v1", "PyTorchJob"): ("kubeflow.training", "KubeflowOrgV1PyTorchJob"),
}
ALL = [*OVERLAYS, *EXAMPLES]
pytestmark = pytest.mark.timeout(300)  # the models of Kubeflow are hundreds of modules


def check_schema(document: Document, minor: str) -> None:
    reason = "kubernetes-validate is not installed (scripts/requirements/deploy.txt)"
    validate = pytest.importorskip("kubernetes_validate", reason=reason)
    validate.validate(document, minor, strict=True)


def read_custom(document: Document) -> Document:
    """What the model of a custom kind makes of it: a field that it does not know is gone, a wrong type an error."""
    module, name = MODELS[document["apiVersion"], document["kind"]]
    models = pytest.importorskip(module, reason=f"{module} is not installed (scripts/requirements/deploy.txt)")
    model = getattr(models, name)
    if module.startswith("kubeflow_trainer_api"):
        return dict(model.from_dict(copy.deepcopy(document)).to_dict())
    if module.startswith("cloudcoil"):
        return dict(model.model_validate(document).model_dump(by_alias=True, exclude_none=True, mode="json"))
    client = models.ApiClient()
    answer = importlib.import_module("kubeflow.training.utils.utils").FakeResponse(document)
    return dict(client.sanitize_for_serialization(client.deserialize(answer, name)))


def holds(read: Any, given: Any) -> bool:
    """Whether all that was given was read; a model may add a default."""
    if isinstance(given, dict):
        return isinstance(read, dict) and all(key in read and holds(read[key], given[key]) for key in given)
    if isinstance(given, list):
        return isinstance(read, list) and len(read) == len(given) and all(map(holds, read, given))
    return bool(read == given)


def refused(document: Document) -> bool:
    """Whether a schema finds a field that it does not know, or a wrong type."""
    if is_custom(document):
        try:
            return not holds(read_custom(document), document)
        except (TypeError, ValueError):
            return True
    validate = pytest.importorskip("kubernetes_validate")
    try:
        check_schema(document, MINORS[-1])
    except validate.ValidationError:
        return True
    return False


@pytest.mark.parametrize("name", ALL)
def test_the_schemas_of_the_last_four_minors_accept_it(name: str) -> None:
    documents = documents_of(name)
    for document in documents:
        if is_custom(document):
            assert holds(read_custom(document), document)
            # What a pod may have is also asked of Kubernetes' own schemas, which are newer.
            checked = [{"apiVersion": "v1", "kind": "Pod", **pod} for pod in pod_templates(document)]
            assert checked or document["kind"] in ("PodMonitor", "TrainJob")
        else:
            checked = [document]
        for one in checked:
            for minor in MINORS:
                check_schema(one, minor)


@pytest.mark.parametrize("name", ["overlays/cpu/sidecar", "overlays/cpu/node", "examples/yours", *EXAMPLES])
def test_a_field_that_does_not_exist_is_found(name: str) -> None:
    for document in documents_of(name):
        spec: dict[str, Any] = document.get("spec", document["metadata"])
        spec["thisFieldDoesNotExist"] = 1
        assert refused(document), document["kind"]
        del spec["thisFieldDoesNotExist"]
        assert not refused(document)
        for pod in pod_templates(document):
            container = pod["spec"]["containers"][0]
            container["imagePullPolize"] = "Always"
            assert refused({"apiVersion": "v1", "kind": "Pod", **pod}), document["kind"]
            del container["imagePullPolize"]


def test_no_overlay_and_no_kind_is_left_out() -> None:
    assert len([name for name in OVERLAYS if name.startswith("overlays/")]) == 9
    kinds = {(one["apiVersion"], one["kind"]) for name in ALL for one in documents_of(name) if is_custom(one)}
    assert kinds == set(MODELS)


def selects(selector: Document, labels: dict[str, str]) -> bool:
    plain = selector if not {"matchLabels", "matchExpressions"} & set(selector) else selector.get("matchLabels", {})
    for expression in selector.get("matchExpressions", []):
        assert expression["operator"] == "In"
        if labels.get(expression["key"]) not in expression["values"]:
            return False
    return all(labels.get(key) == value for key, value in plain.items())


@pytest.mark.parametrize("name", OVERLAYS)
def test_what_selects_pods_selects_those_that_are_there(name: str) -> None:
    documents = documents_of(name)
    pods = [
        (document["metadata"].get("namespace"), pod["metadata"]["labels"])
        for document in documents
        for pod in pod_templates(document)
    ]
    for document in documents:
        spec = document.get("spec", {})
        selector = spec.get("podSelector") or spec.get("selector")
        if selector is None or document["kind"] == "DaemonSet":
            continue
        namespaces = spec.get("namespaceSelector", {}).get("matchNames", [document["metadata"]["namespace"]])
        chosen = [labels for namespace, labels in pods if namespace in namespaces and selects(selector, labels)]
        assert chosen, f"{document['kind']} {document['metadata']['name']} selects no pod"


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_first_pod_is_where_the_others_look_for_it(name: str) -> None:
    documents = documents_of(name)
    (job,) = [document for document in documents if document["kind"] == "Job"]
    services = {document["metadata"]["name"] for document in documents if document["kind"] == "Service"}
    pod = job["spec"]["template"]["spec"]
    variables = {one["name"]: one.get("value") for one in pod["containers"][0]["env"]}
    assert pod["subdomain"] in services
    assert variables["PET_MASTER_ADDR"] == f"{job['metadata']['name']}-0.{pod['subdomain']}"
    assert int(variables["PET_NNODES"]) == job["spec"]["completions"] == job["spec"]["parallelism"]
    for budget in (document for document in documents if document["kind"] == "PodDisruptionBudget"):
        assert budget["spec"]["minAvailable"] == job["spec"]["completions"]


def test_the_first_pod_of_the_jobset_is_where_the_others_look_for_it() -> None:
    (jobset,) = documents_of("examples/jobset.yaml")
    (replicated,) = jobset["spec"]["replicatedJobs"]
    (pod,) = pod_templates(jobset)
    name = jobset["metadata"]["name"]
    variables = {one["name"]: one.get("value") for one in pod["spec"]["containers"][0]["env"]}
    assert variables["PET_MASTER_ADDR"] == f"{name}-{replicated['name']}-0-0.{name}"
    assert int(variables["PET_NNODES"]) == replicated["template"]["spec"]["completions"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_has_the_sidecar_and_the_pod_of_the_overlay(name: str) -> None:
    """They are copies, because their kinds are not the overlay's."""
    (model,) = pods_of("overlays/cpu/sidecar")
    for pod in pods_of(name):
        spec, expected = pod["spec"], model["spec"]
        assert spec["initContainers"] == expected["initContainers"]
        by_name = {volume["name"]: volume for volume in expected["volumes"]}
        assert {volume["name"]: volume for volume in spec["volumes"]} == by_name
        for field in ("securityContext", "shareProcessNamespace", "terminationGracePeriodSeconds"):
            assert spec[field] == expected[field]
        (container,) = spec["containers"]
        (trainer,) = expected["containers"]
        mounts = {mount["name"]: mount for mount in trainer["volumeMounts"]}
        assert {mount["name"]: mount for mount in container["volumeMounts"]} == mounts
        assert container["securityContext"] == trainer["securityContext"]


@pytest.mark.parametrize("name", ALL)
def test_volumes_are_mounted_where_they_exist(name: str) -> None:
    for pod in pods_of(name):
        volumes = {volume["name"] for volume in pod["spec"].get("volumes", [])}
        mounted = {mount["name"] for one in containers_of(pod) for mount in one.get("volumeMounts", [])}
        assert mounted == volumes
