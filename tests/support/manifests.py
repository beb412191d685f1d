"""The Kubernetes manifests of `deploy/`, read as what they say and run without a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"


def manifests() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each object with the name of its file."""
    for path in sorted(FOLDER.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            yield path.name, document


def pod_of(deployment: str) -> dict[str, Any]:
    """The pod of a Deployment."""
    found: dict[str, Any]
    (found,) = (
        one["spec"]["template"]["spec"]
        for _, one in manifests()
        if (one["kind"], one["metadata"]["name"]) == ("Deployment", deployment)
    )
    return found


def arguments_of(deployment: str, replacing: dict[str, str]) -> list[str]:
    """The arguments of the container of a Deployment, with parts of them replaced."""
    (container,) = pod_of(deployment)["containers"]
    arguments: list[str] = container["args"]
    for old, new in replacing.items():
        arguments = [one.replace(old, new) for one in arguments]
    return arguments
