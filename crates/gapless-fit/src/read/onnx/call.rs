//! A node with all that is known of its inputs.

use super::proto::Node;
use crate::model::{Dtype, Graph};
use std::collections::HashMap;

/// Tensors by name, and the content of those that are short lists of integers.
#[derive(Debug, Default)]
pub(crate) struct Values {
    places: HashMap<String, u32>,
    integers: HashMap<u32, Vec<i64>>,
}

impl Values {
    pub(crate) fn place(&self, name: &str) -> Option<u32> {
        self.places.get(name).copied()
    }

    pub(crate) fn set(&mut self, name: &str, at: u32, integers: Option<Vec<i64>>) {
        self.places.insert(name.to_owned(), at);
        if let Some(integers) = integers {
            self.know(at, integers);
        }
    }

    /// Notes the content of a tensor.
    pub(super) fn know(&mut self, at: u32, integers: Vec<i64>) {
        self.integers.insert(at, integers);
    }
}

/// Shape and dtype of one output.
pub(crate) type Output = Option<(Vec<u64>, Dtype)>;

/// A node with all that is known of its inputs.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) node: &'a Node,
    pub(super) inputs: &'a [Option<u32>],
    pub(super) graph: &'a Graph,
    pub(super) values: &'a Values,
}

impl<'a> Call<'a> {
    pub(crate) fn shape(&self, input: usize) -> Option<&'a [u64]> {
        let at = (*self.inputs.get(input)?)?;
        Some(&self.graph.tensors[at as usize].shape)
    }

    pub(crate) fn dtype(&self, input: usize) -> Option<Dtype> {
        let at = (*self.inputs.get(input)?)?;
        Some(self.graph.tensors[at as usize].dtype)
    }

    /// The content of an input, if it is known.
    pub(crate) fn integers(&self, input: usize) -> Option<&'a [i64]> {
        let at = (*self.inputs.get(input)?)?;
        self.values.integers.get(&at).map(Vec::as_slice)
    }

    /// Numbers that are an attribute in older operator sets and an input in newer ones.
    pub(crate) fn numbers(&self, attribute: &str, input: usize) -> Option<&'a [i64]> {
        self.node.ints(attribute).or_else(|| self.integers(input))
    }

    pub(crate) fn count(&self) -> usize {
        self.inputs.len()
    }

    pub(crate) fn given(&self, input: usize) -> bool {
        matches!(self.inputs.get(input), Some(Some(_)))
    }
}

pub(super) fn sizes(numbers: Option<&[i64]>) -> Option<Vec<u64>> {
    numbers?.iter().map(|number| u64::try_from(*number).ok()).collect()
}
