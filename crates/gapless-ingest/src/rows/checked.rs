//! Values as the fields that they stand for: each is checked, and an error names its field.

use super::Wrong;
use crate::value::Value;
use gapless_trace::{Bytes, DeviceAddr, Micros, StackId, StreamId, StringId};

pub(crate) fn text(value: Value, field: &str) -> Result<StringId, Wrong> {
    match value {
        Value::Str(id) => Ok(id),
        other => Err(format!("\"{field}\" is {}, not a string", other.noun())),
    }
}

pub(super) fn optional_text(value: Value) -> StringId {
    if let Value::Str(id) = value { id } else { StringId(0) }
}

pub(super) fn stack(value: Value) -> StackId {
    if let Value::Stack(id) = value { id } else { StackId::NONE }
}

/// A number of bytes: at most 2^60, never negative.
pub(crate) fn size(value: Value, field: &str) -> Result<Bytes, Wrong> {
    match value {
        Value::Int(n) if n < 0 => Err(format!("\"{field}\" is {n}: a size cannot be negative")),
        Value::Int(n) if n as u64 <= Bytes::LIMIT.0 => Ok(Bytes(n as u64)),
        Value::Int(_) | Value::Big(_) | Value::Huge => {
            Err(format!("\"{field}\" is more than 2^60 bytes, which no device has"))
        }
        other => Err(format!("\"{field}\" is {}, not a number of bytes", other.noun())),
    }
}

/// An address. The C++ dump writes those from 2^63 on as negative numbers.
pub(crate) fn address(value: Value, field: &str) -> Result<DeviceAddr, Wrong> {
    match value {
        Value::Int(n) => Ok(DeviceAddr(n as u64)),
        Value::Big(n) => Ok(DeviceAddr(n)),
        other => Err(format!("\"{field}\" is {}, not an address", other.noun())),
    }
}

/// A stream's handle, taken as 64 bits whatever its sign.
pub(super) fn stream(value: Value) -> Result<StreamId, Wrong> {
    match value {
        Value::Int(n) => Ok(StreamId(n as u64)),
        Value::Big(n) => Ok(StreamId(n)),
        other => Err(format!("\"stream\" is {}, not a stream's handle", other.noun())),
    }
}

pub(super) fn time(value: Value) -> Result<Micros, Wrong> {
    match value {
        Value::Int(n) if n >= 0 => Ok(Micros(n as u64)),
        Value::Float(t) if (0.0..9e18).contains(&t) => Ok(Micros(t as u64)),
        Value::Int(n) => Err(format!("\"time_us\" is {n}: a time cannot be negative")),
        other => Err(format!("\"time_us\" is {}, not a time", other.noun())),
    }
}

pub(super) fn device(value: Value) -> Result<u32, Wrong> {
    match value {
        // Device numbers are small; -1 stands for the current device in annotations of the host.
        Value::Int(n) if n < 0 => Ok(0),
        Value::Int(n) if n < 1 << 16 => Ok(n as u32),
        other => Err(format!("\"device\" is {other:?}, not a device's number")),
    }
}
