"""What the launcher tells of a command: the same in every pod of a Deployment, and nothing that is no name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sidecar.launcher import config_file, privacy


def test_a_connector_configuration_with_the_pods_address_is_the_same_in_every_pod():
    digests = {
        tuple(privacy.without_secrets(["vllm", "--kv-transfer-config", f'{{"host": "{address}", "port": 5557}}'])[0])
        for address in ("10.0.0.1", "10.99.0.7", "fd00::1")
    }
    assert len(digests) == 1
    other = privacy.without_secrets(["vllm", "--kv-transfer-config", '{"host": "10.0.0.1", "port": 5558}'])[0]
    assert tuple(other) not in digests


@pytest.mark.parametrize(
    ("variable", "names"),
    [
        ("POD_NAME", ("engine-7d9f8b6c5-x2x9z", "engine-7d9f8b6c5-b4kqz")),
        ("MY_POD_NAME", ("engine-0", "engine-1")),
        ("POD_UID", ("0b8f5d6e-7a5c-4f43-9d3e-1c2b3a4d5e6f", "7e57ab1e-1111-4222-8333-444455556666")),
    ],
)
def test_a_connector_configuration_with_a_name_that_only_a_variable_tells_is_the_same_in_every_pod(
    monkeypatch: pytest.MonkeyPatch, variable: str, names: tuple[str, str]
):
    found = set()
    for name in names:
        monkeypatch.setenv(variable, name)
        found.add(privacy.shown_value("--kv-transfer-config", '{"engine_id": "' + name + '"}'))
        assert name in privacy.own_names({variable: name})
    assert len(found) == 1


@pytest.mark.parametrize("value", ["http://user:pass-word1@10.0.0.1:80", "a name", "-x-1", "x" * 300, "engine-0\n", ""])
def test_what_can_be_no_name_is_none_whatever_its_variable_is_called(value: str):
    assert value not in privacy.own_names({"HOST_NAME": value})


def test_a_host_that_is_called_by_its_whole_domain_is_known_by_its_first_name(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "uname", lambda: type("Host", (), {"nodename": "engine-0.group.ns.svc.cluster.local"}))
    assert privacy.own_names({"HOSTNAME": "", "SOME_POD_NAME_TOO": "x"}) == [
        "engine-0.group.ns.svc.cluster.local",
        "engine-0",
    ]


def test_a_file_of_arguments_is_known_by_what_is_in_it(tmp_path: Path):
    path = tmp_path / "vllm.yaml"
    found = []
    for text in ("max-model-len: 1", "max-model-len: 2"):
        path.write_text(text)
        found += [config_file.digests(["vllm", *words]) for words in (["--config", str(path)], [f"--config={path}"])]
    assert found[0] == found[1] != found[2] == found[3]
    assert config_file.digests(["vllm", "--config", str(tmp_path / "absent")]) == {}
