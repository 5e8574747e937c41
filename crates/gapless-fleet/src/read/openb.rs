//! The CSVs of Alibaba's trace of 2023 (cluster-trace-gpu-v2023, "openb").
//!
//! ```text
//! sn,cpu_milli,memory_mib,gpu,model
//! name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
//! ```
//!
//! Columns are found by name. Columns from `gpu_spec` on may be missing; others may follow.

use super::MOST_BYTES;
use crate::error::{Error, Result};
use crate::words::{MAX_PODS, Node, Pod, Request, Share};
use gapless_formats::csv::Csv;
use std::borrow::Cow;
use std::io::Read;

const MIB: u64 = 1 << 20;
const MOST_ROWS: usize = 20_000_000;

/// A column of a file.
struct Column {
    at: usize,
    name: String,
}

fn column<R: Read>(csv: &Csv<R>, names: &[&str]) -> Result<Column> {
    optional(csv, names).ok_or_else(|| {
        let what = format!("the header has no column {:?}; it has {}", names[0], csv.columns().join(","));
        Error::line(csv.line().max(1), what)
    })
}

fn optional<R: Read>(csv: &Csv<R>, names: &[&str]) -> Option<Column> {
    csv.column(names).map(|at| Column { at, name: csv.columns()[at].clone() })
}

impl Column {
    fn text<'a>(&self, fields: &'a [Cow<'_, str>]) -> &'a str {
        &fields[self.at]
    }

    /// A whole number that is not negative. A number such as `4000.0` counts as whole.
    fn number(&self, line: u64, fields: &[Cow<'_, str>]) -> Result<u64> {
        let text = self.text(fields);
        let whole = text.strip_suffix(".0").unwrap_or(text);
        whole.parse().map_err(|_| {
            let why = match text {
                "" => "is empty".to_owned(),
                _ if text.starts_with('-') => format!("is negative: {text}"),
                _ => format!("is not a whole number that fits in 64 bits: {text:?}"),
            };
            Error::line(line, format!("column {} {why}", self.name))
        })
    }

    fn small(&self, line: u64, fields: &[Cow<'_, str>]) -> Result<u32> {
        let number = self.number(line, fields)?;
        u32::try_from(number)
            .map_err(|_| Error::line(line, format!("column {} is too large: {number}", self.name)))
    }

    fn mebibytes(&self, line: u64, fields: &[Cow<'_, str>]) -> Result<u64> {
        let number = self.number(line, fields)?;
        let too_large = || Error::line(line, format!("column {} is too large: {number} MiB", self.name));
        number.checked_mul(MIB).ok_or_else(too_large)
    }
}

pub(super) fn nodes(input: &mut dyn Read) -> Result<Vec<Node>> {
    let mut csv = Csv::new(input, MOST_BYTES)?;
    let name = column(&csv, &["sn", "name", "node"])?;
    let cpu = column(&csv, &["cpu_milli"])?;
    let memory = column(&csv, &["memory_mib"])?;
    let gpus = column(&csv, &["gpu", "gpus", "num_gpu"])?;
    let model = column(&csv, &["model", "gpu_model"])?;
    let gpu_memory = optional(&csv, &["gpu_memory_mib"]);
    let mut nodes = Vec::new();
    while let Some((line, fields)) = csv.row()? {
        let bytes = match &gpu_memory {
            Some(column) if !column.text(&fields).is_empty() => Some(column.mebibytes(line, &fields)?),
            _ => None,
        };
        let node = Node {
            name: name.text(&fields).to_owned(),
            cpu_milli: cpu.number(line, &fields)?,
            memory: memory.mebibytes(line, &fields)?,
            gpus: gpus.small(line, &fields)?,
            model: model.text(&fields).to_owned(),
            gpu_memory: bytes,
            max_pods: MAX_PODS,
        };
        node.check().map_err(|what| Error::line(line, what))?;
        nodes.push(node);
        few(line, nodes.len())?;
    }
    Ok(nodes)
}

pub(super) fn pods(input: &mut dyn Read) -> Result<Vec<Pod>> {
    let mut csv = Csv::new(input, MOST_BYTES)?;
    let name = column(&csv, &["name", "pod"])?;
    let cpu = column(&csv, &["cpu_milli"])?;
    let memory = column(&csv, &["memory_mib"])?;
    let gpus = column(&csv, &["num_gpu", "gpus", "gpu"])?;
    let milli = column(&csv, &["gpu_milli"])?;
    let models = optional(&csv, &["gpu_spec", "models"]);
    let created = optional(&csv, &["creation_time"]);
    let deleted = optional(&csv, &["deletion_time"]);
    let mut pods = Vec::new();
    while let Some((line, fields)) = csv.row()? {
        let time = |column: &Option<Column>| match column {
            Some(column) if !column.text(&fields).is_empty() => column.number(line, &fields).map(Some),
            _ => Ok(None),
        };
        let request = Request {
            cpu_milli: cpu.number(line, &fields)?,
            memory: memory.mebibytes(line, &fields)?,
            gpus: gpus.small(line, &fields)?,
            share: Share::Milli(milli.small(line, &fields)?),
            models: models.as_ref().map_or("", |column| column.text(&fields)).to_owned(),
        };
        request.check().map_err(|what| Error::line(line, what))?;
        let name = name.text(&fields).to_owned();
        if name.is_empty() {
            return Err(Error::line(line, "the pod has no name"));
        }
        let (created, deleted) = (time(&created)?, time(&deleted)?);
        if let (Some(created), Some(deleted)) = (created, deleted)
            && deleted < created
        {
            return Err(Error::line(
                line,
                format!("the pod is deleted at {deleted}, before it is created at {created}"),
            ));
        }
        pods.push(Pod { name, request, created, deleted, priority: 0, gang: String::new() });
        few(line, pods.len())?;
    }
    Ok(pods)
}

fn few(line: u64, rows: usize) -> Result<()> {
    if rows > MOST_ROWS {
        return Err(Error::line(line, format!("more than {MOST_ROWS} rows")));
    }
    Ok(())
}
