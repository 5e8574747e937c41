//! Tensors of a safetensors file, packed or not: whole or any range, with every checksum checked.

use crate::checksum::checksum;
use crate::codec::{Decoder, Path as Instructions};
use crate::dtype::kind_of;
use crate::error::{Error, Result};
use crate::input::Input;
use crate::packed::{Packed, Stored};
use crate::stream::{Directory, HEAD, StreamError};
use gapless_formats::safetensors::{Header, Tensor};
use std::ops::Range;
use std::path::Path;

/// An open file.
#[derive(Debug)]
pub struct Reader {
    pub input: Input,
    /// The tensors as they were before packing.
    pub header: Header,
    packed: Option<Packed>,
}

impl Reader {
    pub fn open(path: &Path) -> Result<Reader> {
        let input = Input::open(path)?;
        let header = input.header()?;
        let packed = Packed::read(path, header.clone())?;
        let header = packed.as_ref().map_or(header, |packed| packed.original.clone());
        Ok(Reader { input, header, packed })
    }

    /// True if the file is packed.
    pub fn is_packed(&self) -> bool {
        self.packed.is_some()
    }

    /// The tensor of a name, by its place among `header.tensors`.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.header.tensors.iter().position(|tensor| tensor.name == name)
    }

    /// The place of a tensor's bytes: the file's range, and their form. `None`: as they are, without a checksum.
    pub fn place(&self, index: usize) -> (Range<u64>, Option<Stored>) {
        match &self.packed {
            None => {
                let (data, tensor) = (self.header.data(), &self.header.tensors[index]);
                (data + tensor.begin..data + tensor.end, None)
            }
            Some(packed) => {
                let (tensor, stored) = &packed.tensors[index];
                let data = packed.header.data();
                (data + tensor.begin..data + tensor.end, Some(*stored))
            }
        }
    }

    pub(crate) fn damaged(&self, tensor: &Tensor, damage: StreamError) -> Error {
        Error::Damaged { path: self.input.path.clone(), tensor: tensor.name.clone(), damage }
    }

    /// The directory of a tensor that is a stream.
    pub fn directory(&self, index: usize) -> Result<Directory> {
        let tensor = &self.header.tensors[index];
        let (range, _) = self.place(index);
        let length = range.end - range.start;
        let fail = |damage| self.damaged(tensor, damage);
        let head = self.input.bytes(range.start, HEAD.min(length as usize))?;
        let size = Directory::size_of(&head, length).map_err(fail)?;
        let bytes = self.input.bytes(range.start, size)?;
        let directory = Directory::parse(&bytes, length).map_err(fail)?;
        let sum = self.packed.as_ref().and_then(|packed| packed.sums[index]);
        if sum.is_some_and(|sum| sum != checksum(&bytes)) {
            return Err(fail(StreamError::Header("it is not the stream that was packed under this name")));
        }
        if directory.bytes != tensor.bytes() || directory.kind != kind_of(&tensor.dtype) {
            return Err(fail(StreamError::Header("it holds another tensor than the header says")));
        }
        Ok(directory)
    }

    /// The bytes `range` of a tensor into `out`, which is as long. Only the chunks that hold them are read.
    pub fn read(&self, index: usize, range: Range<u64>, out: &mut [u8]) -> Result<()> {
        let tensor = &self.header.tensors[index];
        if range.start > range.end
            || range.end > tensor.bytes()
            || out.len() as u64 != range.end - range.start
        {
            return Error::refused(
                &self.input.path,
                format!("bytes {} to {} are not a range of tensor {:?}", range.start, range.end, tensor.name),
                "ask for a range inside the tensor",
            );
        }
        let (place, stored) = self.place(index);
        if stored != Some(Stored::Stream) {
            return self.input.read(place.start + range.start, out);
        }
        let directory = self.directory(index)?;
        let mut decoder = Decoder::new(directory.kind, Instructions::best(), false);
        let mut values = Vec::new();
        for chunk in directory.chunks(&range) {
            let entry = directory.entries[chunk];
            let bytes = self.input.bytes(place.start + entry.start, entry.length)?;
            let held = directory.range(chunk);
            values.resize((held.end - held.start) as usize, 0);
            directory
                .decode(chunk, &bytes, &mut decoder, &mut values)
                .map_err(|damage| self.damaged(tensor, damage))?;
            let (from, to) = (held.start.max(range.start), held.end.min(range.end));
            out[(from - range.start) as usize..(to - range.start) as usize]
                .copy_from_slice(&values[(from - held.start) as usize..(to - held.start) as usize]);
        }
        Ok(())
    }
}
