//! `gapless fleet dra`: objects of Dynamic Resource Allocation, as JSON.

use super::node;
use super::size::Programs;
use crate::cli::fleet::{ClaimsArgs, DraArgs, DraCommand, SlicesArgs};
use crate::failure::Failure;
use crate::machine::collect::collect;
use crate::{Answer, output};
use anyhow::Result;
use gapless_kube::auto::Sizes;
use gapless_kube::dra::claims::{pod_of, spec, template, use_template};
use gapless_kube::dra::slices::{Owner, slices};
use gapless_kube::{dra, objects};
use serde_json::{Value, json};
use std::io::Read;
use std::path::Path;

pub(super) fn run(args: &DraArgs) -> Result<Answer> {
    let document = match &args.command {
        DraCommand::Class => dra::class(),
        DraCommand::Slices(args) => of_node(args)?,
        DraCommand::Claims(args) => of_manifest(args)?,
    };
    output::write_to(None, |out| Ok(writeln!(out, "{document:#}")?))?;
    Ok(Answer::Yes)
}

/// The files that a command reads.
pub(super) fn read(args: &DraArgs) -> Vec<&Path> {
    match &args.command {
        DraCommand::Claims(args) if args.manifest != Path::new("-") => vec![&args.manifest],
        _ => Vec::new(),
    }
}

fn of_node(args: &SlicesArgs) -> Result<Value> {
    let machine = collect(None)?;
    if let Some(reason) = &machine.no_nvml {
        let what = format!("the driver says nothing of GPUs: {reason}");
        return Err(Failure::new(what, "run this on a node with NVIDIA's driver").into());
    }
    let owner = Owner { node: node::name(args.node.as_deref())?, uid: String::new() };
    let slices = slices(&owner, &node::gpus(&machine), !args.whole, 1)
        .map_err(|what| Failure::new(what, "use --node with the node's name as Kubernetes knows it"))?;
    Ok(list(slices))
}

fn of_manifest(args: &ClaimsArgs) -> Result<Value> {
    let name = args.manifest.display();
    let mut text = Vec::new();
    if args.manifest == Path::new("-") {
        std::io::stdin().lock().read_to_end(&mut text)?;
    } else {
        text = std::fs::read(&args.manifest)
            .map_err(|error| Failure::new(format!("cannot read {name}: {error}"), "check the path"))?;
    }
    let manifest: Value = serde_json::from_slice(&text).map_err(|error| {
        let help = "kubectl create --dry-run=client -o json -f pod.yaml makes JSON of YAML";
        Failure::new(format!("{name}: invalid JSON: {error}"), help)
    })?;
    let manifests = match manifest {
        Value::Object(mut list) if list.get("kind").is_some_and(|kind| kind == "List") => {
            match list.remove("items") {
                Some(Value::Array(items)) => items,
                _ => Vec::new(),
            }
        }
        one => vec![one],
    };
    let sizes = Sizes::new(Box::new(Programs { traces: args.traces.clone() }));
    let mut all = Vec::new();
    for manifest in manifests {
        let (kind, of) = (text_of(&manifest, "kind"), name_of(&manifest));
        let made = with_claim(manifest, &of, &sizes, !args.whole).map_err(|what| {
            let help =
                "`gapless fleet dra claims --help` and docs/fleet-kubernetes.md describe the annotations";
            Failure::new(format!("{kind} {of}: {what}"), help)
        })?;
        all.extend(made);
    }
    Ok(list(all))
}

fn text_of(object: &Value, member: &str) -> String {
    object[member].as_str().unwrap_or_default().to_owned()
}

/// The name of an object, or the beginning of its generated name.
fn name_of(object: &Value) -> String {
    let of = |member: &str| object["metadata"][member].as_str();
    of("name").or_else(|| of("generateName")).unwrap_or_default().trim_end_matches('-').to_owned()
}

/// The template of a claim and the manifest that uses it; the manifest alone if it asks for no GPU memory.
fn with_claim(mut manifest: Value, name: &str, sizes: &Sizes, shared: bool) -> Result<Vec<Value>, String> {
    let namespace = manifest["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
    let Some(pod) = pod_of(&mut manifest) else { return Ok(vec![manifest]) };
    let mut known = objects::pod(pod);
    if let Some(auto) = &known.auto {
        let size = sizes.of(None, auto);
        known.set_size(size);
    }
    let request = match known.request? {
        Some(request) if request.gpus > 0 => request,
        _ => return Ok(vec![manifest]),
    };
    let claim = format!("{name}-gapless");
    let made = template(&claim, &namespace, spec(&request, shared)?)?;
    use_template(pod, &claim)?;
    Ok(vec![made, manifest])
}

fn list(items: Vec<Value>) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}
