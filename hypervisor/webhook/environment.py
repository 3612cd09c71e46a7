# SPDX-License-Identifier: Apache-2.0
"""Changes of a container's environment, as JSON patches. Pure.

The kubelet takes the last of several entries with one name. It expands $(NAME) from the entries above, and
`env` overrides `envFrom`. An entry is therefore changed where it is, and only the last of its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypervisor.pods.pod import mapping, mappings, text
from limiter.container_edits import LIBRARY_IN_CONTAINER

PRELOAD = "LD_PRELOAD"
REFERENCED = "GPULIMIT_REFERENCED_PRELOAD"
"""Added variable: takes over the reference (valueFrom) of LD_PRELOAD, whose new value then names it."""


def preload_patches(at: str, container: Mapping[str, Any], libraries: list[str]) -> list[dict[str, Any]]:
    """Set LD_PRELOAD: the image's libraries first, since ours comes after those that take over CUDA calls.

    Raises ValueError if `envFrom` may set LD_PRELOAD: its content is not in the pod, so it cannot be kept.
    """
    number = last_of(container, PRELOAD)
    if number is None:
        source = bulk_source_of(container, PRELOAD)
        if source:
            raise ValueError(
                f"container {text(container.get('name'))}: LD_PRELOAD may come from {source}, whose content"
                f" the webhook cannot read: set LD_PRELOAD in env, to its libraries or to an empty value"
            )
        return variable_patches(at, container, PRELOAD, joined("", libraries))
    entry = entries_of(container)[number]
    if not entry.get("valueFrom"):
        return variable_patches(at, container, PRELOAD, joined(text(entry.get("value")), libraries))
    return reference_patches(f"{at}/env", number, entry, joined(f"$({REFERENCED})", libraries))


def reference_patches(at: str, number: int, entry: Mapping[str, Any], value: str) -> list[dict[str, Any]]:
    """Move the reference of an entry to REFERENCED, above it, and give the entry a value."""
    patches = [
        {"op": "replace", "path": f"{at}/{number}", "value": {**entry, "name": REFERENCED}},
        add(f"{at}/{number + 1}", {"name": PRELOAD, "value": value}),
    ]
    if any(mapping(source).get("optional") is True for source in mapping(entry["valueFrom"]).values()):
        # The kubelet leaves out an optional reference to nothing; $(NAME) would then stay as it is written.
        patches.append(add(f"{at}/{number}", {"name": REFERENCED, "value": ""}))
    return patches


def joined(own: str, libraries: list[str]) -> str:
    """Return a value of LD_PRELOAD: a container's own, then `libraries`, then ours, each once."""
    parts = [*own.replace(" ", ":").split(":"), *libraries, LIBRARY_IN_CONTAINER]
    return ":".join(dict.fromkeys(part for part in parts if part))


def variable_patches(at: str, container: Mapping[str, Any], name: str, value: str) -> list[dict[str, Any]]:
    """Give a variable a value; nothing if it has that already."""
    wanted = {"name": name, "value": value}
    if not isinstance(container.get("env"), list):
        return [add(f"{at}/env", [wanted])]
    number = last_of(container, name)
    if number is None:
        return [add(f"{at}/env/-", wanted)]
    if entries_of(container)[number] == wanted:
        return []
    return [{"op": "replace", "path": f"{at}/env/{number}", "value": wanted}]


def entries_of(container: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the entries of `env`, at their places."""
    listed = container.get("env")
    return [mapping(one) for one in listed] if isinstance(listed, list) else []


def last_of(container: Mapping[str, Any], name: str) -> int | None:
    """Return the place of the entry that sets a variable: the last with its name."""
    places = [number for number, one in enumerate(entries_of(container)) if one.get("name") == name]
    return places[-1] if places else None


def bulk_source_of(container: Mapping[str, Any], name: str) -> str:
    """Return which ConfigMap or Secret of `envFrom` may set a variable; "": none can, by their prefixes."""
    for one in mappings(container.get("envFrom")):
        if not name.startswith(text(one.get("prefix"))):
            continue
        for kind in ("configMapRef", "secretRef"):
            if kind in one:
                return f"envFrom, {kind} {text(mapping(one[kind]).get('name'))}"
    return ""


def add(path: str, value: Any) -> dict[str, Any]:
    return {"op": "add", "path": path, "value": value}
