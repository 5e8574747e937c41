//! What the targets of models do with what was read. The promise is no panic and no runaway memory.

#![allow(dead_code)]

use gapless_fit::model::Model;
use gapless_fit::parameters;
use gapless_fit::read::ReadError;

pub fn check(answer: Result<Model, ReadError>) {
    if let Some(architecture) = answer.ok().and_then(|model| model.architecture) {
        assert!(parameters::count(&architecture).is_some());
        let _buffers = parameters::buffers(&architecture);
    }
}

/// An archive whose one member, stored, is this program.
pub fn archive(text: &[u8]) -> Vec<u8> {
    const NAME: &[u8] = b"serialized_exported_program.json";
    let mut crc = flate2::Crc::new();
    crc.update(text);
    let size = (text.len() as u32).to_le_bytes();
    let common = [
        &[20, 0, 0, 0, 0, 0, 0, 0, 0, 0][..],
        &crc.sum().to_le_bytes(),
        &size,
        &size,
        &[NAME.len() as u8, 0, 0, 0],
    ]
    .concat();
    let member = [b"PK\x03\x04", &common[..], NAME, text].concat();
    let entry = [b"PK\x01\x02\x14\0", &common[..], &[0; 14], NAME].concat();
    let lengths = [(entry.len() as u32).to_le_bytes(), (member.len() as u32).to_le_bytes()].concat();
    [&member[..], &entry, b"PK\x05\x06\0\0\0\0\x01\0\x01\0", &lengths, &[0, 0]].concat()
}
