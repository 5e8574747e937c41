"""Prints the schema of Kubernetes 1.36 for kinds that schema.json lacks, from the OpenAPI description in its sources.

    python3 newer.py KUBERNETES/api/openapi-spec/v3 > newer.json
"""

import json
import sys
from pathlib import Path

KINDS = {
    "apis__admissionregistration.k8s.io__v1": [
        "MutatingAdmissionPolicy",
        "MutatingAdmissionPolicyBinding",
        "MutatingWebhookConfiguration",
    ],
    "apis__scheduling.k8s.io__v1": ["PriorityClass"],
    "api__v1": ["ConfigMap"],
}
# Types that are texts and numbers, or any object.
SPECIAL = {
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": {"x-kubernetes-int-or-string": True},
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {"x-kubernetes-int-or-string": True},
    "io.k8s.apimachinery.pkg.runtime.RawExtension": {"type": "object"},
}
WANTED = ("type", "properties", "items", "additionalProperties", "required", "allOf", "$ref")
definitions: dict = {}


def short(reference: str) -> str:
    return reference.rsplit("/", 1)[1]


def kept(schema: dict, all_schemas: dict) -> dict:
    """A schema without its descriptions; what it refers to goes to the definitions."""
    out: dict = {}
    for name in WANTED:
        if name not in schema:
            continue
        value = schema[name]
        if name == "$ref":
            add(short(value), all_schemas)
            out[name] = f"#/$defs/{short(value)}"
        elif name == "properties":
            out[name] = {member: kept(one, all_schemas) for member, one in value.items()}
        elif name in ("items", "additionalProperties"):
            out[name] = kept(value, all_schemas) if isinstance(value, dict) else {}
        elif name == "allOf":
            out[name] = [kept(one, all_schemas) for one in value]
        else:
            out[name] = value
    return out


def add(name: str, all_schemas: dict) -> None:
    if name in definitions:
        return
    definitions[name] = {}
    definitions[name] = SPECIAL.get(name) or kept(all_schemas[name], all_schemas)


def main() -> None:
    kinds = {}
    for file, wanted in KINDS.items():
        document = json.loads(Path(sys.argv[1], f"{file}_openapi.json").read_text())
        all_schemas = document["components"]["schemas"]
        for name, schema in all_schemas.items():
            for of in schema.get("x-kubernetes-group-version-kind", []):
                if of["kind"] in wanted and file.endswith(of["version"]):
                    add(name, all_schemas)
                    group = f"{of['group']}/" if of["group"] else ""
                    kinds[f"{group}{of['version']} {of['kind']}"] = {"$ref": f"#/$defs/{name}"}
    print(json.dumps({"kinds": kinds, "$defs": definitions}, indent=1, sort_keys=True))


main()
