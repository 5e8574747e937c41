//! The bytes of a piece's rows, for any layout within their tensor.
//!
//! Contiguous rows are read on demand. For other pieces the bytes of the whole expert are read, once for all
//! consecutive pieces of it, and each job gathers its rows from them. So memory holds one expert, and at its
//! end the next one too.

use super::choice::{Matrix, Piece};
use super::experts::View;
use super::matrix::Fault;
use crate::error::Result;
use crate::input::Input;
use gapless_formats::safetensors::{Header, bits};
use std::sync::Arc;

/// Bytes of a matrix that one job reads, about.
pub(super) const JOB: u64 = 1 << 20;

/// Some rows: read, or still within their expert.
#[derive(Debug)]
pub(super) enum Rows {
    Read(Vec<u8>),
    Within { block: Arc<Vec<u8>>, view: View, first: u64, count: u64, columns: u64, width: usize },
}

impl Rows {
    pub(super) fn bytes(self) -> Vec<u8> {
        match self {
            Rows::Read(bytes) => bytes,
            Rows::Within { block, view, first, count, columns, width } => {
                view.gather(&block, first, count, columns, width)
            }
        }
    }
}

/// Reads the pieces of one file.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    input: &'a Input,
    header: &'a Header,
    /// The tensor and the beginning of the expert that was read last.
    block: Option<(usize, u64, Arc<Vec<u8>>)>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(input: &'a Input, header: &'a Header) -> Reader<'a> {
        Reader { input, header, block: None }
    }

    /// Rows `first` to `first + count` of a piece of the tensor `source`.
    pub(super) fn rows(&mut self, source: usize, piece: &Piece, first: u64, count: u64) -> Result<Rows> {
        let tensor = &self.header.tensors[source];
        let width = bits(&tensor.dtype).unwrap_or(8) / 8;
        let columns = piece.shape.get(1).copied().unwrap_or(1);
        let data = self.header.data() + tensor.begin;
        let view = piece.view;
        if view.is_plain(columns) {
            let begin = data + (view.begin + first * view.row) * width;
            return Ok(Rows::Read(self.input.bytes(begin, (count * columns * width) as usize)?));
        }
        let begin = view.block_begin();
        let block = match &self.block {
            Some((of, at, block)) if (*of, *at) == (source, begin) => block.clone(),
            _ => {
                // The last expert is released first, so that two are held only while jobs still use the last one.
                self.block = None;
                let bytes = self.input.bytes(data + begin * width, (view.block * width) as usize)?;
                let block = Arc::new(bytes);
                self.block = Some((source, begin, block.clone()));
                block
            }
        };
        Ok(Rows::Within { block, view, first, count, columns, width: width as usize })
    }

    /// Goes over the rows of a matrix in order. The inner error is about one of its values.
    pub(super) fn fold<T>(
        &mut self,
        source: usize,
        piece: &Piece,
        matrix: &Matrix,
        mut state: T,
        add: impl Fn(T, &[u8]) -> std::result::Result<T, Fault>,
    ) -> Result<std::result::Result<T, Fault>> {
        let step = (JOB / (matrix.columns * matrix.kind.width() as u64)).max(1);
        let mut first = 0;
        while first < matrix.rows {
            let count = step.min(matrix.rows - first);
            match add(state, &self.rows(source, piece, first, count)?.bytes()) {
                Ok(next) => state = next,
                Err(fault) => return Ok(Err(fault)),
            }
            first += count;
        }
        Ok(Ok(state))
    }
}
