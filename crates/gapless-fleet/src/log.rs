//! The log of a run: a row for each arrival, in order, and a row for each move.

use crate::arrivals::Arrivals;
use crate::error::{Error, Result};
use crate::sim::{Outcome, Run};
use crate::words::{Node, Pod};
use gapless_formats::csv::Csv;
use std::borrow::Cow;
use std::io::{self, Read, Write};

pub const HEADER: &str = "order,pod,node,gpus,milli,cpu_milli,memory_mib,status";
pub const MOVES_HEADER: &str = "order,pod,from,from_gpus,to,to_gpus,gained_milli";

/// Writes the log of a run. Orders count from 0.
pub fn write(
    out: &mut dyn Write,
    nodes: &[Node],
    pods: &[Pod],
    arrivals: &Arrivals,
    run: &Run,
) -> io::Result<()> {
    writeln!(out, "{HEADER}")?;
    for (order, (arrival, outcome)) in arrivals.order.iter().zip(&run.outcomes).enumerate() {
        let request = &pods[arrival.pod as usize].request;
        let name = arrival.name(pods);
        let (node, gpus, milli, status) = match outcome {
            Outcome::Placed { node, gpus, milli } => {
                (nodes[*node as usize].name.as_str(), indices(gpus), *milli, "placed")
            }
            Outcome::Failed(_) => {
                let milli = if request.gpus == 0 { 0 } else { request.milli_of(nodes[0].units()) };
                ("", String::new(), milli, "failed")
            }
        };
        writeln!(
            out,
            "{order},{},{},{gpus},{milli},{},{},{status}",
            field(&name),
            field(node),
            request.cpu_milli,
            request.memory >> 20
        )?;
    }
    Ok(())
}

/// Writes the moves of a run.
pub fn write_moves(
    out: &mut dyn Write,
    nodes: &[Node],
    pods: &[Pod],
    arrivals: &Arrivals,
    run: &Run,
) -> io::Result<()> {
    writeln!(out, "{MOVES_HEADER}")?;
    for (order, one) in &run.moves {
        let pod = arrivals.order[one.pod].name(pods);
        let (from, to) = (&nodes[one.from as usize].name, &nodes[one.to as usize].name);
        let (from_gpus, to_gpus) = (indices(&one.from_gpus), indices(&one.to_gpus));
        let gained = one.gained_milli;
        writeln!(
            out,
            "{order},{},{},{from_gpus},{},{to_gpus},{gained}",
            field(&pod),
            field(from),
            field(to)
        )?;
    }
    Ok(())
}

fn indices(gpus: &[u16]) -> String {
    gpus.iter().map(u16::to_string).collect::<Vec<_>>().join(";")
}

/// A field, quoted if it has to be. Control characters, which would break a line, become spaces.
fn field(text: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c != ',' && c != '"' && !c.is_control();
    if text.chars().all(is_plain) && text.trim() == text {
        return Cow::Borrowed(text);
    }
    let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    Cow::Owned(format!("\"{}\"", clean.replace('"', "\"\"")))
}

/// A row of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRow {
    pub line: u64,
    pub order: u64,
    pub pod: String,
    pub node: String,
    pub gpus: Vec<u16>,
    pub milli: u64,
    pub cpu_milli: u64,
    pub memory_mib: u64,
    pub placed: bool,
}

/// Reads a log.
pub fn read(input: &mut dyn Read) -> Result<Vec<LogRow>> {
    let mut csv = Csv::new(input, 4 << 30)?;
    let mut at = [0; 8];
    for (at, name) in at.iter_mut().zip(HEADER.split(',')) {
        let found = csv.column(&[name]);
        *at = found.ok_or_else(|| {
            Error::line(1, format!("the log has no column {name:?}; it must have {HEADER}"))
        })?;
    }
    let mut rows = Vec::new();
    while let Some((line, fields)) = csv.row()? {
        let number = |column: usize| {
            let text = &fields[at[column]];
            text.parse::<u64>().map_err(|_| {
                let name = HEADER.split(',').nth(column).unwrap_or_default();
                Error::line(line, format!("column {name} is not a whole number: {text:?}"))
            })
        };
        let placed = match fields[at[7]].as_ref() {
            "placed" => true,
            "failed" => false,
            other => {
                return Err(Error::line(line, format!("unknown status {other:?}: use placed or failed")));
            }
        };
        rows.push(LogRow {
            line,
            order: number(0)?,
            pod: fields[at[1]].as_ref().to_owned(),
            node: fields[at[2]].as_ref().to_owned(),
            gpus: parse_indices(line, &fields[at[3]])?,
            milli: number(4)?,
            cpu_milli: number(5)?,
            memory_mib: number(6)?,
            placed,
        });
    }
    Ok(rows)
}

/// A row of the list of moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveRow {
    pub line: u64,
    /// The arrival for which it was made.
    pub order: u64,
    pub pod: String,
    pub from: String,
    pub to: String,
    pub to_gpus: Vec<u16>,
}

/// Reads a list of moves.
pub fn read_moves(input: &mut dyn Read) -> Result<Vec<MoveRow>> {
    let mut csv = Csv::new(input, 4 << 30)?;
    let mut at = [0; 7];
    for (at, name) in at.iter_mut().zip(MOVES_HEADER.split(',')) {
        let found = csv.column(&[name]);
        *at = found.ok_or_else(|| {
            Error::line(1, format!("the list has no column {name:?}; it must have {MOVES_HEADER}"))
        })?;
    }
    let mut rows = Vec::new();
    while let Some((line, fields)) = csv.row()? {
        let order =
            fields[at[0]].parse().map_err(|_| Error::line(line, "column order is not a whole number"))?;
        rows.push(MoveRow {
            line,
            order,
            pod: fields[at[1]].as_ref().to_owned(),
            from: fields[at[2]].as_ref().to_owned(),
            to: fields[at[4]].as_ref().to_owned(),
            to_gpus: parse_indices(line, &fields[at[5]])?,
        });
    }
    Ok(rows)
}

fn parse_indices(line: u64, text: &str) -> Result<Vec<u16>> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let one = |part: &str| {
        part.trim()
            .parse()
            .map_err(|_| Error::line(line, format!("gpus are not indices separated by `;`: {text:?}")))
    };
    text.split(';').map(one).collect()
}
