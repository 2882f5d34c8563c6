"""The files of `deploy/` are checked by linters, and agree with each other."""

from __future__ import annotations

import http.server
import os
import platform
import re
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import yaml

if sys.platform == "darwin" and platform.machine() == "x86_64":  # for which it has no wheel
    helm = None
else:
    import helm_python as helm

with_helm = pytest.mark.skipif(helm is None, reason="Helm's library has no wheel for Macs with Intel processors")

DEPLOY = Path(__file__).parents[2] / "deploy"
TOOLS = Path(sys.executable).parent
EXECUTOR = DEPLOY / "kubernetes" / "executor.yaml"
"""The template of pods from which Spark makes those of executors."""
DRIVER = DEPLOY / "cluster-mode" / "driver.yaml"
"""The template of the pod from which spark-submit makes that of the driver."""
DEFAULTS = (DEPLOY / "kubernetes" / "spark-defaults.conf").read_text()
SUBMITTED = (DEPLOY / "cluster-mode" / "spark-defaults.conf").read_text()
CHART = DEPLOY / "helm"
VALUES = {"checkpoint": "s3://bucket/ponds/orders", "sql": "CREATE TABLE a;\nCREATE TABLE b;\n"}
"""The least that a user must give."""
MORE = {**VALUES, "replicas": 3, "secrets": {"store": "redis", "environment": "aws"}, "arguments": ["--patience=5"],
        "environment": {"AWS_REGION": "eu-central-1"}, "spark": {"spark.locality.wait": "1s"},
        "accountAnnotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/pond"},
        "connections": {"local": {"servers": "kafka:9092"}}}  # fmt: skip
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))


def run(*words: str | Path, **environment: str) -> str:
    """What a program prints; it must succeed."""
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, timeout=60, env=os.environ | environment
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def settings(text: str) -> dict[str, str]:
    """The settings of a spark-defaults.conf.

    >>> settings(DEFAULTS)["spark.driver.host"]
    'pond-0.driver'
    """
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return dict(line.split(None, 1) for line in lines)


def objects(texts: Iterable[str]) -> dict[tuple[str, str], dict]:
    """The Kubernetes objects of some files, by kind and name."""
    found = [one for text in texts for one in yaml.safe_load_all(text) if one]
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


@pytest.fixture(scope="module")
def manifests() -> dict[tuple[str, str], dict]:
    """Every Kubernetes object, by kind and name."""
    return objects(file.read_text() for file in MANIFESTS)


def test_the_dockerfile_passes_hadolint() -> None:
    run(TOOLS / "hadolint", DEPLOY / "Dockerfile")


def test_the_compose_file_fits_its_schema() -> None:
    run(TOOLS / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml")


def test_the_service_needs_no_package_that_the_image_lacks() -> None:
    others = {"duckdb", "psycopg", "nicegui", "deltalake", "pyiceberg", "hdfs_native", "ptars", "pytest"}
    imports = "import millpond.service.postgres.endpoint, millpond.service.server.serve_process"
    run(sys.executable, "-c", f"import sys; sys.modules.update(dict.fromkeys({others})); {imports}")


def test_an_image_is_built_by_one_service() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert [one["image"] for one in services.values() if "build" in one] == ["millpond"]


def test_the_command_that_waits_for_the_starter_ends() -> None:
    """`docker compose up --wait` fails if a service ends, unless another one waits for its end."""
    starter = DEPLOY.parent / "src" / "millpond" / "control" / "commands" / "starter" / "compose.yaml"
    services = yaml.safe_load(starter.read_text())["services"]
    assert [name for name, one in services.items() if "healthcheck" not in one] == []


def test_the_manifests_fit_kubernetes() -> None:
    run(TOOLS / "kubernetes-validate", "--strict", *MANIFESTS, DRIVER)


NOTES = "NOTES.txt"
"""What Helm prints after an installation."""


def rendered(values: dict) -> dict[str, str]:
    """The files that Helm makes of the chart, by name."""
    with helm.Chart.load(CHART) as chart:
        return {Path(name).name: text for name, text in chart.render(values, name="orders", namespace="prod").items()}


def charted(values: dict) -> dict[tuple[str, str], dict]:
    """The objects of the chart, by kind and name."""
    return objects(text for name, text in rendered(values).items() if name != NOTES)


@with_helm
@pytest.mark.parametrize("values", [VALUES, MORE], ids=["least", "more"])
def test_the_chart_passes_helm_and_fits_kubernetes(values: dict, tmp_path: Path) -> None:
    found = helm.lint(CHART, values, strict=True)
    assert not found["errors"] and [one["error"] for one in found["messages"]] == ["icon is recommended"]
    files = rendered(values)
    assert f"millpond status --checkpoint {values['checkpoint']}" in files.pop(NOTES)
    template = objects(files.values())["ConfigMap", "orders"]["data"]["executor.yaml"]
    for name, text in {**files, "executor.yaml": template}.items():
        (tmp_path / name).write_text(text)
    run(TOOLS / "kubernetes-validate", "--strict", *sorted(tmp_path.glob("*.yaml")))


@with_helm
@pytest.mark.parametrize(("key", "value"), [("checkpoint", "/pond/orders"), ("checkpoint", ""), ("sql", ""),
                                            ("token", "a-token-in-a-file")])  # fmt: skip
def test_the_chart_refuses_values(key: str, value: str) -> None:
    with pytest.raises(helm.HelmError, match=key):
        rendered({**VALUES, key: value})


@with_helm
def test_the_chart_agrees_with_the_manifests(manifests: dict[tuple[str, str], dict]) -> None:
    chart = charted(MORE)
    assert {kind for kind, _ in manifests} - {"Namespace", "Pod"} < {kind for kind, _ in chart}
    ours, theirs = (of["StatefulSet", name]["spec"]["template"]["spec"]
                    for of, name in ((chart, "orders"), (manifests, "pond")))  # fmt: skip
    assert ours["securityContext"] == theirs["securityContext"]
    [pond], [plain] = ours["containers"], theirs["containers"]
    for part in ("securityContext", "ports", "startupProbe", "livenessProbe", "readinessProbe"):
        assert pond[part] == plain[part], part
    assert chart["Role", "orders"]["rules"] == manifests["Role", "pond"]["rules"]
    data = chart["ConfigMap", "orders"]["data"]
    template, executor = yaml.safe_load(data["executor.yaml"])["spec"], manifests["Pod", "executor"]["spec"]
    assert template["securityContext"] == executor["securityContext"]
    assert template["containers"][0]["securityContext"] == executor["containers"][0]["securityContext"]
    ours, theirs = {*settings(data["spark-defaults.conf"])}, {*settings(DEFAULTS)}
    of_the_pod = {"spark.driver.host", "spark.kubernetes.driver.pod.name"}
    assert ours == theirs - of_the_pod | {"spark.locality.wait"}
    assert of_the_pod == {word.split("=")[1] for word in pond["args"] if word.startswith("--conf=")}
    assert data["pond.sql"] == MORE["sql"] and yaml.safe_load(data["connections.json"]) == MORE["connections"]


@with_helm
def test_drivers_of_the_chart_are_found_and_get_secrets_by_reference() -> None:
    chart = charted(MORE)
    assert not [name for kind, name in chart if kind == "Secret"]
    pond, driver = chart["StatefulSet", "orders"]["spec"], chart["Service", "orders-driver"]
    [container] = pond["template"]["spec"]["containers"]
    assert pond["serviceName"] == "orders-driver" and driver["spec"]["publishNotReadyAddresses"]
    assert "--conf=spark.driver.host=$(POD_NAME).orders-driver" in container["args"]
    hosts = [word for word in container["args"] if word.startswith("--allow-host")]
    assert hosts[0] == "--allow-host=$(POD_NAME).orders-driver.prod.svc"
    assert {port["port"] for port in driver["spec"]["ports"]} == {one["containerPort"] for one in container["ports"]}
    budget = chart["PodDisruptionBudget", "orders"]["spec"]
    for selector in (driver["spec"]["selector"], budget["selector"]["matchLabels"]):
        assert selector == pond["template"]["metadata"]["labels"]
    secret = {one["name"] for one in container["env"] if "secretKeyRef" in one.get("valueFrom", {})}
    assert secret == {"MILLPOND_TOKEN", "MILLPOND_STORE"}
    [executor] = yaml.safe_load(chart["ConfigMap", "orders"]["data"]["executor.yaml"])["spec"]["containers"]
    for one in (container, executor):
        assert one["envFrom"] == [{"secretRef": {"name": "aws"}}]
        assert {"name": "AWS_REGION", "value": "eu-central-1"} in one["env"]
        assert {"name": "MILLPOND_CACHE_BYTES", "value": "10000000000"} in one["env"]
    settings_page = (DEPLOY.parent / "docs" / "settings.md").read_text()
    for word in container["args"][2:]:
        assert f"`{word.partition('=')[0]}" in settings_page, word


@pytest.mark.parametrize("file", sorted(DEPLOY.glob("*.sh")), ids=lambda file: file.name)
def test_a_script_parses(file: Path) -> None:
    run("sh", "-n", file)
    assert os.access(file, os.X_OK)


def test_every_file_that_is_named_exists() -> None:
    named = yaml.safe_load((DEPLOY / "kustomization.yaml").read_text())
    files = [*named["resources"], *(file for one in named["configMapGenerator"] for file in one["files"])]
    copied = re.findall(r"deploy/[\w./-]+", (DEPLOY / "Dockerfile").read_text())
    assert {DEPLOY / file for file in named["resources"]} == {*MANIFESTS} - {EXECUTOR}
    assert [file for file in files if not (DEPLOY / file).is_file()] == []
    assert [file for file in copied if not (DEPLOY.parent / file).is_file()] == []


def test_executors_reach_the_driver_where_the_manifests_say(manifests: dict[tuple[str, str], dict]) -> None:
    spark = settings(DEFAULTS)
    pond, driver = manifests["StatefulSet", "pond"], manifests["Service", "driver"]
    container = pond["spec"]["template"]["spec"]["containers"][0]
    assert spark["spark.driver.host"] == f"{spark['spark.kubernetes.driver.pod.name']}.{driver['metadata']['name']}"
    assert spark["spark.kubernetes.executor.useDriverPodIP"] == "false", "they would connect to 0.0.0.0"
    assert pond["spec"]["serviceName"] == driver["metadata"]["name"] and driver["spec"]["publishNotReadyAddresses"]
    assert driver["spec"]["selector"] == pond["spec"]["template"]["metadata"]["labels"]
    ports = {int(spark["spark.driver.port"]), int(spark["spark.driver.blockManager.port"])}
    assert ports == {port["port"] for port in driver["spec"]["ports"]}
    assert ports < {port["containerPort"] for port in container["ports"]}
    assert {spark["spark.authenticate"], spark["spark.network.crypto.enabled"]} == {"true"}, "of ports that all reach"
    assert spark["spark.kubernetes.container.image"] == container["image"]
    account = spark["spark.kubernetes.authenticate.executor.serviceAccountName"]
    assert not manifests["ServiceAccount", account]["automountServiceAccountToken"]
    assert int(spark["spark.executor.instances"]) * int(spark["spark.executor.cores"]) == 4
    assert "--instances=4" in container["args"]


def test_executors_have_no_more_rights_than_the_driver(manifests: dict[tuple[str, str], dict]) -> None:
    spark = settings(DEFAULTS)
    driver, made = manifests["StatefulSet", "pond"]["spec"]["template"]["spec"], manifests["Pod", "executor"]["spec"]
    assert made["securityContext"].items() <= driver["securityContext"].items()
    [container] = made["containers"]
    assert container["securityContext"] == driver["containers"][0]["securityContext"]
    assert container["name"] == spark["spark.kubernetes.executor.podTemplateContainerName"]
    assert spark["spark.kubernetes.executor.podTemplateFile"] == f"/etc/millpond/{EXECUTOR.name}"
    files = yaml.safe_load((DEPLOY / "kustomization.yaml").read_text())["configMapGenerator"][0]["files"]
    assert f"kubernetes/{EXECUTOR.name}" in files


def test_a_submitted_driver_has_the_rights_and_probes_of_the_pod(manifests: dict[tuple[str, str], dict]) -> None:
    pod, [https] = yaml.safe_load(DRIVER.read_text()), manifests["Service", "pond"]["spec"]["ports"]
    ours, theirs = pod["spec"], manifests["StatefulSet", "pond"]["spec"]["template"]["spec"]
    assert pod["metadata"]["labels"].items() >= manifests["Service", "pond"]["spec"]["selector"].items()
    for part in ("securityContext", "terminationGracePeriodSeconds"):
        assert ours[part] == theirs[part], part
    [driver], [pond] = ours["containers"], theirs["containers"]
    for part in ("name", "securityContext", "startupProbe", "livenessProbe", "readinessProbe"):
        assert driver[part] == pond[part], part
    assert driver["ports"] == [{"name": "https", "containerPort": https["port"]}], "Spark adds its own"
    assert driver["volumeMounts"] == [mount for mount in pond["volumeMounts"] if mount["name"] != "pond"]
    assert ours["volumes"] == theirs["volumes"]


def test_the_settings_of_cluster_mode_agree_with_the_manifests(manifests: dict[tuple[str, str], dict]) -> None:
    spark, plain = settings(SUBMITTED), settings(DEFAULTS)
    of_the_pod = {"spark.driver.host", "spark.driver.bindAddress", "spark.kubernetes.driver.pod.name"}
    assert not of_the_pod & {*spark}, "spark-submit refuses these, or the pod could not be submitted again"
    templates = {name for name in spark if name.endswith("podTemplateFile")}
    assert {name: DEPLOY.parent / spark[name] for name in templates} == {
        "spark.kubernetes.driver.podTemplateFile": DRIVER, "spark.kubernetes.executor.podTemplateFile": EXECUTOR
    }  # fmt: skip
    common = {*plain} & {*spark} - templates
    assert {name: spark[name] for name in common} == {name: plain[name] for name in common}
    assert {"spark.authenticate", "spark.decommission.enabled", "spark.executor.failuresValidityInterval"} < common
    accounts = [spark[f"spark.kubernetes.authenticate.{who}.serviceAccountName"] for who in ("driver", "executor")]
    pond = manifests["StatefulSet", "pond"]["spec"]["template"]["spec"]
    assert accounts[0] == pond["serviceAccountName"] and ("ServiceAccount", accounts[1]) in manifests
    [driver] = yaml.safe_load(DRIVER.read_text())["spec"]["containers"]
    assert spark["spark.kubernetes.driver.podTemplateContainerName"] == driver["name"]
    secrets = {name.rpartition(".")[2]: value for name, value in spark.items() if ".driver.secretKeyRef." in name}
    [token] = [one for one in pond["containers"][0]["env"] if one["name"] == "MILLPOND_TOKEN"]
    assert secrets["MILLPOND_TOKEN"] == ":".join(token["valueFrom"]["secretKeyRef"].values())
    for name in {*secrets} - {"MILLPOND_TOKEN"}:
        assert spark[f"spark.kubernetes.executor.secretKeyRef.{name}"] == secrets[name], "tasks write to the store"


def test_an_executor_may_finish_its_task_before_its_pod_is_killed() -> None:
    """With Kubernetes's 30 seconds, a longer task would be killed in the middle, although the script waits for it."""
    [waits] = re.findall(r"^timeout (\d+) ", (DEPLOY / "decommission.sh").read_text(), re.MULTILINE)
    period = settings(DEFAULTS)["spark.kubernetes.executor.terminationGracePeriodSeconds"]
    assert int(waits) < int(period.removesuffix("s"))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="this system has no /proc")
def test_the_script_waits_until_an_executor_has_finished_its_task(tmp_path: Path) -> None:
    executor = f"trap 'sleep 0.3; echo done > {tmp_path}/task; exit' PWR; echo ready; while :; do sleep 0.05; done"
    words = [sys.executable, "-c", f"import subprocess; subprocess.run(['sh', '-c', {executor!r}])"]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None and first.stdout.readline() == b"ready\n"
        run(DEPLOY / "decommission.sh", str(first.pid))
        assert (tmp_path / "task").read_text() == "done\n"


@pytest.mark.parametrize("cluster", ["cluster-mode", "kubernetes", "yarn"])
def test_executors_that_failed_long_ago_do_not_end_a_pond(cluster: str) -> None:
    """By default Spark counts all that have ever failed."""
    assert "spark.executor.failuresValidityInterval" in settings((DEPLOY / cluster / "spark-defaults.conf").read_text())


def test_no_secret_is_in_a_file(manifests: dict[tuple[str, str], dict]) -> None:
    assert not [name for kind, name in manifests if kind == "Secret"]
    container = manifests["StatefulSet", "pond"]["spec"]["template"]["spec"]["containers"][0]
    variables = {one["name"]: one for one in container["env"]}
    assert "value" not in variables["MILLPOND_TOKEN"] and "value" not in variables["MILLPOND_STORE"]
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert services["pond"]["environment"]["MILLPOND_TOKEN"].startswith("${MILLPOND_TOKEN:?")


def test_an_executor_gets_the_options_that_spark_passes(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n')
    java.chmod(0o755)
    passed = {
        "SPARK_JAVA_OPT_0": "-Da=b c", "SPARK_JAVA_OPT_1": "-Xss32m", "SPARK_JAVA_OPT_3": "after a gap",
        "SPARK_EXECUTOR_MEMORY": "2048m", "SPARK_DRIVER_URL": "spark://x@pond-0.driver:7078", "SPARK_EXECUTOR_ID": "7",
        "SPARK_EXECUTOR_CORES": "2", "SPARK_APPLICATION_ID": "app", "SPARK_EXECUTOR_POD_IP": "10.0.0.9",
        "SPARK_RESOURCE_PROFILE_ID": "0", "SPARK_EXECUTOR_POD_NAME": "pond-exec-7", "SPARK_CONF_DIR": "/conf",
        "JAVA_HOME": str(tmp_path), "SPARK_HOME": "/opt/spark", "SPARK_CLASSPATH": "/more.jar",
    }  # fmt: skip
    words = run(DEPLOY / "entrypoint.sh", "executor", **passed).splitlines()
    assert words[:6] == ["-Da=b c", "-Xss32m", "-Xms2048m", "-Xmx2048m", "-cp", "/conf:/more.jar:/opt/spark/jars/*"]
    assert words[6].endswith(".KubernetesExecutorBackend")
    assert words[words.index("--driver-url") + 1] == "spark://x@pond-0.driver:7078"


PROGRAM = """#!/bin/sh
for word in "$@"; do echo "$word"; done
cat "$SPARK_CONF_DIR/spark-defaults.conf" "$SPARK_CONF_DIR/log4j2.properties"
stat -c %a "$SPARK_CONF_DIR"
"""
"""A `python` that prints its words, and the settings that Spark's launcher would read."""


GIVEN = "#Java properties\nspark.app.id=spark-1\nspark.app.name=a\\=b\nspark.submit.deployMode=cluster\n"


def driver(tmp_path: Path, *words: str, settings: str = GIVEN) -> subprocess.CompletedProcess[str]:
    """What the entry point does in the pod of a driver with some settings; `{}` in a word is the file of settings."""
    python, given = tmp_path / "bin" / "python", tmp_path / "conf" / "spark.properties"
    for file, text in ((python, PROGRAM), (given, settings), (given.with_name("log4j2.properties"), "level=warn\n")):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    python.chmod(0o755)
    environment = {
        "PATH": f"{python.parent}:{os.environ['PATH']}", "SPARK_CONF_DIR": str(given.parent), "TMPDIR": str(tmp_path),
        "SPARK_DRIVER_BIND_ADDRESS": "10.0.0.8",
    }  # fmt: skip
    command = [str(DEPLOY / "entrypoint.sh"), *(word.format(given) for word in words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ | environment)


AS_PYTHON = ("driver", "--properties-file", "{}", "--class", "org.apache.spark.deploy.PythonRunner")


def test_a_submitted_driver_starts_its_program_with_the_settings_that_spark_passes(tmp_path: Path) -> None:
    done = driver(tmp_path, *AS_PYTHON, "local:///usr/local/bin/pond.py", "serve", "a b.sql", "--class", "x")
    assert done.stdout.splitlines() == [
        "/usr/local/bin/pond.py", "serve", "a b.sql", "--class", "x",
        "#Java properties", "spark.app.name=a\\=b", "spark.submit.deployMode=cluster",
        "spark.submit.deployMode=client", "spark.driver.bindAddress=10.0.0.8", "level=warn", "700",
    ], done.stderr  # fmt: skip


@pytest.mark.parametrize("settings", ["", "spark.app.id=spark-1\n"])
def test_a_driver_without_other_settings_starts(settings: str, tmp_path: Path) -> None:
    done = driver(tmp_path, *AS_PYTHON, "local:///usr/local/bin/pond.py", settings=settings)
    assert done.returncode == 0, done.stderr
    added = ["spark.submit.deployMode=client", "spark.driver.bindAddress=10.0.0.8"]
    assert done.stdout.splitlines() == ["/usr/local/bin/pond.py", *added, "level=warn", "700"]


def test_the_submitted_program_is_in_the_image() -> None:
    [copied] = re.findall(r"^COPY (.* deploy/pond\.py) (.*)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    page = (DEPLOY.parent / "docs" / "how-to" / "deploy.md").read_text()
    for text in (page, (DEPLOY / "entrypoint.sh").read_text()):
        assert f"local://{copied[1]}pond.py" in text
    assert "!deploy/pond.py" in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()


@pytest.mark.parametrize(("words", "reason"), [
    (("driver", "--properties-file", "{}", "--class", "org.example.Main", "local:///a.jar"), "programs in Python"),
    ((*AS_PYTHON, "s3a://bucket/pond.py"), "not in the image: submit local:///usr/local/bin/pond.py"),
    (AS_PYTHON, "not in the image"),
    ((*AS_PYTHON[:3], "--proxy-user", "eve", "local:///a.py"), "does not know the option --proxy-user"),
    ((*AS_PYTHON[:2],), "has no value"),
    (("driver", *AS_PYTHON[3:], "local:///a.py"), "has no --properties-file"),
])  # fmt: skip
def test_a_driver_that_the_image_cannot_run_is_refused(words: tuple[str, ...], reason: str, tmp_path: Path) -> None:
    done = driver(tmp_path, *words)
    assert done.returncode == 2 and reason in done.stderr and done.stdout == ""


def test_other_words_are_a_subcommand(tmp_path: Path) -> None:
    program = tmp_path / "millpond"
    program.write_text('#!/bin/sh\necho "millpond $*"\n')
    program.chmod(0o755)
    said = run(DEPLOY / "entrypoint.sh", "serve", "a.sql", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert said == "millpond serve a.sql\n"


class _Service(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/v1/health" else 503)
        self.end_headers()
        self.wfile.write(b'{"role": "standby"}')

    def log_message(self, *words: object) -> None:
        """Print nothing."""


@pytest.fixture
def service() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Service) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_the_health_check_fails_unless_the_service_answers(service: str) -> None:
    script = [sys.executable, str(DEPLOY / "health.py")]
    assert run(*script, MILLPOND_HEALTH_URL=f"{service}/v1/health") == '{"role": "standby"}\n'
    refused = subprocess.run(script, capture_output=True, env=os.environ | {"MILLPOND_HEALTH_URL": f"{service}/else"})
    assert refused.returncode == 1
