//! Prints the schema of Kubernetes 1.34 for the kinds of objects that Gapless writes, as testdata/kubernetes has it.
//!
//! The crate k8s-openapi is generated from Kubernetes' own OpenAPI description. Descriptions are left out: the tests
//! need the names, the types and what is required.

use k8s_openapi::api::admissionregistration::v1 as admission;
use k8s_openapi::api::resource::v1 as resource;
use k8s_openapi::api::{apps::v1 as apps, core::v1 as core, policy::v1 as policy, rbac::v1 as rbac};
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

fn add<T: JsonSchema>(generator: &mut SchemaGenerator, kinds: &mut Map<String, Value>, kind: &str) {
    kinds.insert(kind.to_owned(), generator.subschema_for::<T>().to_value());
}

/// Members of a schema. Under `properties` and `$defs`, names are those of the objects' own members.
fn without_descriptions(schema: &mut Value, is_names: bool) {
    match schema {
        Value::Object(members) => {
            if !is_names {
                members.remove("description");
            }
            for (name, member) in members.iter_mut() {
                without_descriptions(member, !is_names && (name == "properties" || name == "$defs"));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| without_descriptions(item, false)),
        _ => {}
    }
}

fn main() {
    let mut generator = SchemaGenerator::default();
    let mut kinds = Map::new();
    let (all, to) = (&mut generator, &mut kinds);
    add::<resource::DeviceClass>(all, to, "resource.k8s.io/v1 DeviceClass");
    add::<resource::ResourceClaim>(all, to, "resource.k8s.io/v1 ResourceClaim");
    add::<resource::ResourceClaimTemplate>(all, to, "resource.k8s.io/v1 ResourceClaimTemplate");
    add::<resource::ResourceSlice>(all, to, "resource.k8s.io/v1 ResourceSlice");
    add::<core::Namespace>(all, to, "v1 Namespace");
    add::<core::Pod>(all, to, "v1 Pod");
    add::<core::Service>(all, to, "v1 Service");
    add::<core::ServiceAccount>(all, to, "v1 ServiceAccount");
    add::<apps::DaemonSet>(all, to, "apps/v1 DaemonSet");
    add::<apps::Deployment>(all, to, "apps/v1 Deployment");
    add::<rbac::ClusterRole>(all, to, "rbac.authorization.k8s.io/v1 ClusterRole");
    add::<rbac::ClusterRoleBinding>(all, to, "rbac.authorization.k8s.io/v1 ClusterRoleBinding");
    add::<policy::PodDisruptionBudget>(all, to, "policy/v1 PodDisruptionBudget");
    let policy = "admissionregistration.k8s.io/v1 ValidatingAdmissionPolicy";
    add::<admission::ValidatingAdmissionPolicy>(all, to, policy);
    add::<admission::ValidatingAdmissionPolicyBinding>(all, to, &format!("{policy}Binding"));
    let definitions: Map<String, Value> = generator.take_definitions(false).into_iter().collect();
    let mut document = json!({"kinds": kinds, "$defs": definitions});
    without_descriptions(&mut document, false);
    println!("{document:#}");
}
