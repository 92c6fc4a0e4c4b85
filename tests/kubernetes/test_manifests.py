"""What the manifests in k8s/ promise beyond valid fields: stores, GPU types, rights, reasons for numbers.

Schemas: test_schemas.py. Agreement with the code: tests/contract/test_pod_shape.py. No cluster is asked here.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from sidecar import __version__
from sidecar.config import Settings
from sidecar.daemon.own_facts import Told, places
from sidecar.engines.address import agreement, disagreements
from sidecar.engines.outside import hints_of
from sidecar.kube.facts import pod_facts
from sidecar.kube.injection.options import INJECTED, from_file
from sidecar.kube.injection.review import Reviewer
from tests.kubernetes.patching import patched
from tests.kubernetes.pod_shapes import review
from tests.kubernetes.rendered import (
    COMPONENTS,
    K8S,
    KUSTOMIZATIONS,
    Json,
    containers,
    everything,
    kustomized,
    named,
    need,
    plain,
    pods,
    run,
)
from tests.prepare import debian, kubernetes_tools

BASE = K8S / "base"
#: What has a reason near it: seconds, thresholds, sizes, shares.
NUMBER = re.compile(r"^\s+(- )?(\w+Seconds|\w+Threshold|max(Surge|Unavailable)|sizeLimit|cpu|memory|nominalQuota): ")
SHIPPED = sorted(path for path in K8S.rglob("*.yaml") if "chart" not in path.relative_to(K8S).parts)


def of_kind(documents: tuple[Json, ...], kind: str) -> list[Json]:
    return [document for document in documents if document["kind"] == kind]


def pod_of(name: str) -> Json:
    [deployment] = of_kind(kustomized(name), "Deployment")
    spec = deployment["spec"]["template"]["spec"]
    assert isinstance(spec, dict)
    return spec


def test_every_folder_of_manifests_is_rendered_by_these_tests():
    assert {"base", "overlays/hopper-fp8", "overlays/blackwell-nvfp4", "overlays/cpu"} <= set(KUSTOMIZATIONS)
    assert len(COMPONENTS) == len(list((K8S / "components").iterdir()))


def test_the_bases_kustomization_lists_every_manifest():
    kustomization = yaml.safe_load((BASE / "kustomization.yaml").read_text(encoding="utf-8"))
    listed = {path.name for path in BASE.glob("*.yaml")} - {"kustomization.yaml"}
    assert set(kustomization["resources"]) == listed


@pytest.mark.parametrize(
    "path", [BASE / "deployment.yaml", *(K8S / "injector").rglob("*.yaml")], ids=lambda path: path.name
)
def test_each_number_has_a_reason_near_it(path: Path):
    lines = path.read_text(encoding="utf-8").splitlines()
    numbers = [index for index, line in enumerate(lines) if NUMBER.match(line)]
    # A reason above the first of a block speaks for what follows directly.
    unexplained = [lines[at].strip() for at in numbers if not any("#" in line for line in lines[max(0, at - 7) : at])]
    assert unexplained == []


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.relative_to(K8S).as_posix())
def test_a_file_begins_with_what_it_is_for(path: Path):
    # A patch is explained by the kustomization beside it.
    beside = path.parent / "kustomization.yaml"
    text = path.read_text(encoding="utf-8")
    explained = text.startswith("# ") or (beside.exists() and beside.read_text(encoding="utf-8").startswith("# "))
    assert explained


def test_the_image_is_a_placeholder_with_this_version():
    # A registry.example.com can't exist, so nobody pulls by accident what somebody else put there.
    images = {
        container["image"] for _, document in everything() for pod in pods(document) for container in containers(pod)
    }
    ours = {image for image in images if "warmup-sidecar" in image}
    assert ours == {f"registry.example.com/warmup-sidecar:{__version__}"}
    options = from_file(yaml.safe_load((K8S / "injector" / "base" / "options.yaml").read_text(encoding="utf-8")))
    assert options.image in ours


def test_the_container_file_runs_as_the_user_of_the_manifests():
    text = (K8S / "Containerfile").read_text(encoding="utf-8")
    rights = named(pod_of("base"), "warmup-sidecar")["securityContext"]
    assert f"USER {rights['runAsUser']}:{rights['runAsGroup']}" in text
    assert f"warmup-sidecar:{__version__}" in text
    stages = re.findall(r"^FROM ", text, re.MULTILINE)
    assert len(stages) == 2


def test_the_live_cache_is_private_to_the_pod_and_on_no_network_volume():
    for source, document in everything():
        for pod in pods(document):
            for volume in pod.get("volumes", []):
                if volume["name"] in ("live-cache", "control"):
                    assert set(volume) == {"name", "emptyDir"}, source


# --- stores --------------------------------------------------------------------------------------------------------------


def store_of(name: str) -> Json:
    [volume] = [volume for volume in pod_of(name)["volumes"] if volume["name"] == "store"]
    return volume


def test_the_bases_store_can_be_mounted_by_many_nodes():
    [claim] = of_kind(kustomized("base"), "PersistentVolumeClaim")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert store_of("base")["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]


def test_a_node_local_store_needs_no_claim_and_its_directory_belongs_to_the_sidecars_group():
    documents = kustomized("components/store-node-local")
    assert of_kind(documents, "PersistentVolumeClaim") == []
    volume = store_of("components/store-node-local")
    [prepare] = of_kind(documents, "DaemonSet")
    pod = prepare["spec"]["template"]["spec"]
    [its] = [each for each in pod["volumes"] if each["name"] == "store"]
    assert volume["hostPath"]["path"] == its["hostPath"]["path"]
    group = pod_of("base")["securityContext"]["fsGroup"]
    assert f'os.chown("/mnt/store", 0, {group})' in named(pod, "make-directory")["args"][0]


def test_a_bucket_is_read_and_never_published_to():
    documents = kustomized("components/store-bucket")
    [claim], [volume] = of_kind(documents, "PersistentVolumeClaim"), of_kind(documents, "PersistentVolume")
    assert claim["spec"]["accessModes"] == volume["spec"]["accessModes"] == ["ReadOnlyMany"]
    assert claim["spec"]["volumeName"] == volume["metadata"]["name"]
    assert claim["spec"]["storageClassName"] == volume["spec"]["storageClassName"] == ""
    mounts = {
        mount["name"]: mount for mount in named(pod_of("components/store-bucket"), "warmup-sidecar")["volumeMounts"]
    }
    assert mounts["store"]["readOnly"] is True


# --- GPU types -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "major", "flags"),
    [
        ("overlays/hopper-fp8", "9", {"--quantization=fp8", "--kv-cache-dtype=fp8"}),
        ("overlays/blackwell-nvfp4", "10", {"--quantization=modelopt_fp4", "--kv-cache-dtype=fp8"}),
    ],
)
def test_an_overlay_has_the_formats_of_its_gpu(name: str, major: str, flags: set[str]):
    pod = pod_of(name)
    assert pod["nodeSelector"] == {"nvidia.com/gpu.compute.major": major}
    assert flags <= set(named(pod, "engine")["args"])
    assert named(pod, "engine")["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_the_cpu_overlay_asks_for_no_gpu():
    assert "nvidia.com" not in json.dumps(pod_of("overlays/cpu"))


def test_of_prefill_and_decode_each_has_selectors_of_its_own():
    for example in ("examples/llm-d", "examples/dynamo"):
        selectors = [json.dumps(each["spec"]["selector"]) for each in of_kind(kustomized(example), "Deployment")]
        assert len(selectors) == 2
        assert selectors[0] != selectors[1]


def test_the_decode_pods_requests_go_through_their_proxy_and_its_warm_up_does_not():
    documents = kustomized("examples/llm-d")
    [decode] = [each for each in of_kind(documents, "Deployment") if each["metadata"]["name"].endswith("decode")]
    pod = decode["spec"]["template"]["spec"]
    [service] = [each for each in of_kind(documents, "Service") if each["metadata"]["name"].endswith("decode")]
    [port] = [
        port
        for port in named(pod, "routing-proxy")["ports"]
        if port["name"] == service["spec"]["ports"][0]["targetPort"]
    ]
    environment = {entry["name"]: entry.get("value") for entry in named(pod, "warmup-sidecar")["env"]}
    assert port["containerPort"] == 8000
    assert environment["WARMUP_ENGINE_URL"] == "http://127.0.0.1:8200"


def test_every_sidecar_looks_for_its_engine_where_its_command_puts_it():
    looked = 0
    for source, document in everything():
        for pod in pods(document):
            containers = {each["name"]: each for each in [*pod.get("initContainers", ()), *pod.get("containers", ())]}
            if "warmup-sidecar" not in containers or "engine" not in containers:
                continue
            environment = {each["name"]: each.get("value", "") for each in containers["warmup-sidecar"].get("env", ())}
            hints = hints_of(places(Told(pod=pod_facts({"spec": pod}))))
            url = environment.get("WARMUP_ENGINE_URL", Settings().engine_url)
            looked += agreement(url, hints) != ""
            assert disagreements(url, hints, keyed=False) == (), source
    assert looked > 10


# --- scaling, alerts -----------------------------------------------------------------------------------------------------


def test_scalers_leave_pods_out_that_are_not_ready():
    [keda] = [document for source, document in plain() if source.endswith("keda.yaml")]
    adapter = yaml.safe_load((K8S / "examples" / "autoscaling" / "prometheus-adapter.yaml").read_text(encoding="utf-8"))
    queries = [trigger["metadata"]["query"] for trigger in keda["spec"]["triggers"]]
    queries += [rule["metricsQuery"] for rule in adapter["rules"]["external"]]
    assert len(queries) == 2
    assert all("and on (namespace, pod) (warmup_sidecar_ready == 1)" in query for query in queries)
    [hpa] = [document for source, document in plain() if source.endswith("hpa.yaml")]
    names = {metric["external"]["metric"]["name"] for metric in hpa["spec"]["metrics"]}
    assert names == {rule["name"]["as"] for rule in adapter["rules"]["external"]}


def test_the_alerts_are_accepted_by_promtool(tmp_path: Path):
    promtool = shutil.which("promtool", path=debian.search_path())
    if promtool is None:
        pytest.skip("no promtool; `python -m tests --only packages` says why")
    [rule] = of_kind(kustomized("components/monitoring"), "PrometheusRule")
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rule["spec"]), encoding="utf-8")
    checked = subprocess.run(
        [promtool, "check", "rules", str(tmp_path / "rules.yaml")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_alert_has_a_section_in_the_readme():
    [rule] = of_kind(kustomized("components/monitoring"), "PrometheusRule")
    readme = (K8S / "README.md").read_text(encoding="utf-8")
    headings = set(re.findall(r"^#+ (.+)$", readme, re.MULTILINE))
    assert {alert["alert"] for group in rule["spec"]["groups"] for alert in group["rules"]} <= headings


# --- the injector --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["injector/cert-manager", "injector/self-signed"])
def test_the_webhook_asks_the_service_for_selected_pods_only(variant: str):
    documents = kustomized(variant)
    [configuration] = of_kind(documents, "MutatingWebhookConfiguration")
    [hook] = configuration["webhooks"]
    [service] = of_kind(documents, "Service")
    asked = hook["clientConfig"]["service"]
    assert (asked["name"], asked["namespace"]) == (service["metadata"]["name"], service["metadata"]["namespace"])
    assert asked["port"] == service["spec"]["ports"][0]["port"]
    assert hook["objectSelector"] == {"matchLabels": {"warmup-sidecar.io/inject": "true"}}
    assert hook["failurePolicy"] == "Ignore"
    assert hook["timeoutSeconds"] <= 5
    assert "caBundle" not in hook["clientConfig"]


def test_the_injector_itself_has_no_rights_and_no_token():
    for name in ("injector/cert-manager", "injector/self-signed"):
        [deployment] = of_kind(kustomized(name), "Deployment")
        assert deployment["spec"]["template"]["spec"]["automountServiceAccountToken"] is False
        bound = [subject["name"] for each in kustomized(name) for subject in each.get("subjects", [])]
        assert deployment["spec"]["template"]["spec"]["serviceAccountName"] not in bound


def test_the_certificate_job_may_touch_what_is_there_by_name():
    documents = kustomized("injector/self-signed")
    [job] = of_kind(documents, "Job")
    words = job["spec"]["template"]["spec"]["containers"][0]["args"]
    given = dict(word.removeprefix("--").split("=") for word in words if "=" in word)
    allowed = {name for kind in ("Role", "ClusterRole") for each in of_kind(documents, kind) for rule in each["rules"]
               for name in rule.get("resourceNames", [])}  # fmt: skip
    assert allowed == {given["secret"], given["webhook"]}
    assert [each["metadata"]["name"] for each in of_kind(documents, "MutatingWebhookConfiguration")] == [
        given["webhook"]
    ]
    assert [each["metadata"]["name"] for each in of_kind(documents, "Service")] == [given["service"]]
    [deployment] = of_kind(documents, "Deployment")
    volumes = {volume["name"]: volume for volume in deployment["spec"]["template"]["spec"]["volumes"]}
    assert volumes["tls"]["secret"]["secretName"] == given["secret"]
    [options] = of_kind(documents, "ConfigMap")
    assert volumes["options"]["configMap"]["name"] == options["metadata"]["name"]


def test_the_cas_key_never_reaches_the_injector():
    [deployment] = of_kind(kustomized("injector/self-signed"), "Deployment")
    [volume] = [each for each in deployment["spec"]["template"]["spec"]["volumes"] if each["name"] == "tls"]
    assert [item["key"] for item in volume["secret"]["items"]] == ["tls.crt", "tls.key"]


def test_the_injected_example_gets_the_sidecar():
    [example] = [document for source, document in plain() if source.endswith("injected/deployment.yaml")]
    template = example["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", **template}
    options = from_file(yaml.safe_load((K8S / "injector" / "base" / "options.yaml").read_text(encoding="utf-8")))
    answer = Reviewer(options, {}, __version__).answer(review(pod))
    assert (answer.outcome, answer.warnings) == ("injected", ())
    after = patched(pod, answer.body)
    assert after["metadata"]["annotations"][INJECTED] == __version__
    assert named(after["spec"], "vllm")["command"] == ["python3", "/run/warmup/launcher.py", "--", "vllm", "serve"]


# --- security ------------------------------------------------------------------------------------------------------------

#: Findings of checkov that are decided, each with the reason.
DECIDED = {
    "CKV_K8S_8": "no liveness probe for the engine: it would end engines that only compile",
    "CKV_K8S_9": "readiness is the sidecar's",
    "CKV_K8S_11": "no cpu limit: it would slow the restore that the engine's start waits for",
    "CKV_K8S_13": "the engine's memory depends on the model",
    "CKV_K8S_15": "IfNotPresent, because tags are versions and engine images are 10 to 20 GB",
    "CKV_K8S_20": "set where it is ours",
    "CKV_K8S_21": "the namespace is the user's choice",
    "CKV_K8S_22": "the engine's image writes to its root",
    "CKV_K8S_23": "engine images run as root",
    "CKV_K8S_35": "a Secret is read as a file, but for what others take from the environment: vLLM its API key, AWS' tools keys",
    "CKV_K8S_40": "the sidecar's uid is 10001; engine images run as root",
    "CKV_K8S_43": "images are placeholders; users pin them by digest",
    "CKV2_K8S_6": "the injector's callers are the API servers, whose addresses no manifest can know",
    "CKV_K8S_155": "the certificate job may patch one webhook configuration, by its name",
    "CKV_K8S_37": "the container that gives the node's directory to the sidecars' group needs three capabilities",
    "CKV_K8S_38": "the sidecar's token is projected into its container alone; the webhook's example leaves the pod as it was",
    "CKV_K8S_25": "the container that gives the node's directory to the sidecars' group needs three capabilities",
    "CKV_K8S_30": "each container has a security context",
}


@pytest.mark.slow
def test_checkov_finds_nothing_that_was_not_decided(tmp_path: Path):
    checkov = kubernetes_tools.tool("checkov")
    if checkov is None:
        pytest.skip(f"no checkov; the stage {kubernetes_tools.CHECKOV_STAGE} of --slow says why")
    for index, (source, document) in enumerate(everything()):
        path = tmp_path / f"{index:03}-{re.sub(r'[^a-z0-9]+', '-', source)}.yaml"
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
    words = [
        checkov,
        "-d",
        tmp_path,
        "--framework",
        "kubernetes",
        "--skip-download",
        "--quiet",
        "--compact",
        "-o",
        "json",
    ]
    done = run(words)
    report = json.loads(done.stdout)
    found = {(each["check_id"], each["check_name"]) for each in report["results"]["failed_checks"]}
    assert sorted(each for each in found if each[0] not in DECIDED) == []
    assert report["summary"]["passed"] > 1000
    assert report["summary"]["parsing_errors"] == 0


def test_kubectl_is_the_one_that_was_prepared():
    assert "v1.3" in run([need("kubectl"), "version", "--client"]).stdout
