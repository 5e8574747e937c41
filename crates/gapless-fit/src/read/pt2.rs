//! `.pt2` archives of torch.export: the graph's JSON becomes a `Graph`. Both layouts are read: one program at the root
//! (torch 2.4 to 2.7), and `models/<name>.json` with a table of weights (2.8 and later). Weights are never read; if the
//! table says that two parameters are one tensor, they become one. Dimensions that were exported as symbols take the
//! value of the example they were exported with.

use super::error::{Fault, Problem, unsupported};
use super::json::{Json, brief};
use super::pt2_graph;
use super::zip::{Member, Zip};
use crate::model::{Architecture, GraphTensor, Model, Weight};
use std::collections::HashMap;
use std::io::{Read, Seek};

const LARGEST: u64 = 512 << 20;
const VALUES: u64 = 5_000_000;

/// The model in an archive.
pub(crate) fn read<R: Read + Seek>(name: String, file: R) -> Result<Model, Fault> {
    let mut zip = Zip::open(file)?;
    let Some(program) = program(&zip.members)? else {
        let python = zip.members.iter().any(|member| member.name.ends_with("/data.pkl"));
        return unsupported(
            if python {
                "this archive is a checkpoint or a pickled module, not an exported program"
            } else {
                "this archive holds no exported program"
            },
            "save the model with torch.export.save(torch.export.export(model, inputs), PATH)",
        );
    };
    let text = zip.read(&program, LARGEST)?;
    let within = |fault: Fault| inside(*fault, &program.name);
    let json = Json::parse(&text, VALUES).map_err(within)?;
    let aliases = aliases(&mut zip, &program)?;
    let mut notes = Vec::new();
    let graph = pt2_graph::build(&json, &aliases, &mut notes).map_err(within)?;
    super::bounded(&graph)?;
    let weights = graph
        .parameters
        .iter()
        .chain(&graph.buffers)
        .map(|at| weight(&graph.tensors[*at as usize]))
        .collect();
    Ok(Model {
        name,
        architecture: Some(Architecture::Graph(Box::new(graph))),
        weights: Some(weights),
        stored: None,
        notes,
    })
}

/// Offsets of the JSON are those within its member.
fn inside(problem: Problem, member: &str) -> Fault {
    let member = brief(member);
    Box::new(match problem {
        Problem::Malformed { offset, what } => {
            Problem::Malformed { offset, what: format!("of the member \"{member}\": {what}") }
        }
        Problem::Truncated { offset, reading } => {
            Problem::Truncated { offset, reading: format!("{reading} (of the member \"{member}\")") }
        }
        other => other,
    })
}

/// The member that holds the graph.
fn program(members: &[Member]) -> Result<Option<Member>, Fault> {
    if let Some(old) = members
        .iter()
        .find(|member| member.name.rsplit('/').next() == Some("serialized_exported_program.json"))
    {
        return Ok(Some(old.clone()));
    }
    let models: Vec<&Member> = members
        .iter()
        .filter(|member| {
            let mut parts = member.name.rsplit('/');
            parts.next().is_some_and(|file| file.ends_with(".json")) && parts.next() == Some("models")
        })
        .collect();
    if let Some(model) = models.iter().find(|member| member.name.ends_with("/model.json")) {
        return Ok(Some((*model).clone()));
    }
    match models[..] {
        [] => Ok(None),
        [model] => Ok(Some(model.clone())),
        _ => unsupported(
            format!("this archive holds {} programs", models.len()),
            "save the one to be looked at alone",
        ),
    }
}

/// Names of parameters by the member that stores them, if the archive has that table.
fn aliases<R: Read + Seek>(zip: &mut Zip<R>, program: &Member) -> Result<HashMap<String, String>, Fault> {
    let mut paths = HashMap::new();
    let stem = program
        .name
        .rsplit('/')
        .next()
        .and_then(|file| file.strip_suffix(".json"))
        .unwrap_or_default()
        .to_owned();
    let wanted = format!("data/weights/{stem}_weights_config.json");
    let Some(member) = zip.members.iter().find(|member| member.name.ends_with(&wanted)).cloned() else {
        return Ok(paths);
    };
    let text = zip.read(&member, LARGEST)?;
    let json = Json::parse(&text, VALUES).map_err(|fault| inside(*fault, &member.name))?;
    for (name, entry) in json.get("config").and_then(Json::object).unwrap_or_default() {
        // A view of part of a stored tensor is not the same tensor: that needs the same shape, which is compared when
        // both are known.
        if let Some(path) = entry.get("path_name").and_then(Json::text) {
            paths.insert(name.clone(), path.to_owned());
        }
    }
    Ok(paths)
}

fn weight(tensor: &GraphTensor) -> Weight {
    // Sizes were checked when the tensor was read.
    let bytes = tensor.shape.iter().product::<u64>() * tensor.dtype.bytes();
    Weight { name: tensor.name.clone(), shape: tensor.shape.clone(), dtype: Some(tensor.dtype), bytes }
}
