//! Lists of nodes and pods from files: the openb CSVs, or our JSON; plain, or compressed with gzip or zstd.
//!
//! Files are untrusted: sizes are limited, and every error has its place and cause.

mod json;
mod openb;

use crate::error::{Error, Result};
use crate::words::{Node, Pod, check_nodes, check_pods};
use gapless_formats::packing::{Packing, unpacked};
use std::io::Read;

/// The bytes of a list after decompression.
const MOST_BYTES: u64 = 2 << 30;
const XZ: [u8; 6] = [0xfd, b'7', b'z', b'X', b'Z', 0];

/// Reads a list of nodes.
pub fn nodes(input: &mut (dyn Read + Send)) -> Result<Vec<Node>> {
    let nodes = opened(input, openb::nodes, json::nodes)?;
    check_nodes(&nodes)?;
    if nodes.iter().all(|node| node.gpus == 0) {
        return Err(Error::Input("no node has a GPU".to_owned()));
    }
    Ok(nodes)
}

/// Reads a list of pods.
pub fn pods(input: &mut (dyn Read + Send)) -> Result<Vec<Pod>> {
    let pods = opened(input, openb::pods, json::pods)?;
    check_pods(&pods)?;
    if pods.is_empty() {
        return Err(Error::Input("the list has no pods".to_owned()));
    }
    Ok(pods)
}

/// One node, from an object as in a JSON list.
pub fn node(value: serde_json::Value) -> std::result::Result<Node, String> {
    json::node(value)
}

/// One pod, from an object as in a JSON list.
pub fn pod(value: serde_json::Value) -> std::result::Result<Pod, String> {
    json::pod(value)
}

type Parse<T> = fn(&mut dyn Read) -> Result<Vec<T>>;

fn opened<T: Send>(input: &mut (dyn Read + Send), csv: Parse<T>, json: Parse<T>) -> Result<Vec<T>> {
    let mut head = [0; 6];
    let length = fill(input, &mut head)?;
    let head = &head[..length];
    if head == XZ {
        let what = "the file is compressed with xz, which is not supported: decompress it with `xz -d`";
        return Err(Error::Input(what.to_owned()));
    }
    let mut whole = head.chain(input);
    match Packing::of(head) {
        Some(packing) => unpacked(packing, &mut whole, |inner| {
            let mut first = [0; 1];
            let length = fill(inner, &mut first)?;
            parse(&mut first[..length].chain(inner), &first[..length], csv, json)
        }),
        None => parse(&mut whole, head, csv, json),
    }
}

fn parse<T>(input: &mut dyn Read, head: &[u8], csv: Parse<T>, json: Parse<T>) -> Result<Vec<T>> {
    let first = head.iter().find(|byte| !byte.is_ascii_whitespace());
    match first {
        Some(b'{' | b'[') => json(input),
        Some(0) => Err(Error::Input("the file is neither CSV nor JSON".to_owned())),
        _ => csv(input),
    }
}

/// Reads until `buffer` is full or the input ends.
fn fill(input: &mut (impl Read + ?Sized), buffer: &mut [u8]) -> Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match input.read(&mut buffer[length..]) {
            Ok(0) => break,
            Ok(n) => length += n,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(source) => return Err(gapless_formats::Error::Io { offset: length as u64, source }.into()),
        }
    }
    Ok(length)
}
