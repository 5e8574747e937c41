//! The reasons why weights cannot be loaded, also as JSON, from which Python makes its exceptions.

use gapless_weights::Error;
use gapless_weights::stream::StreamError;
use serde_json::{Value, json};

pub type Result<T> = std::result::Result<T, LoadError>;

/// An error of a loading.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    #[error(transparent)]
    Weights(#[from] Error),
    #[error("CUDA: {call} failed: {reason}")]
    Cuda { call: &'static str, reason: String },
    #[error("no CUDA driver: {0}")]
    NoDriver(&'static str),
    #[error("{0}")]
    Argument(String),
    #[error("the loading was cancelled")]
    Cancelled,
    #[error("gapless panicked: {0}: this is a bug, please report it with the file's header")]
    Panicked(String),
}

impl LoadError {
    /// The error for a panic.
    pub(crate) fn of_panic(panic: &(dyn std::any::Any + Send)) -> LoadError {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        LoadError::Panicked(text.unwrap_or_else(|| "no message".to_owned()))
    }

    /// The next step for the user.
    fn help(&self) -> &'static str {
        match self {
            // `--keep-going` is an option of the command line.
            LoadError::Weights(Error::Damaged { .. }) => {
                "copy the file again; `gapless weights unpack --keep-going` restores the tensors that are whole"
            }
            LoadError::Weights(error) => error.help(),
            LoadError::Cuda { .. } => {
                "look at what the program did on this device before; device=\"cpu\" needs no GPU"
            }
            LoadError::NoDriver(_) => "install NVIDIA's driver, or load with device=\"cpu\"",
            LoadError::Argument(_) => "correct the call",
            LoadError::Cancelled | LoadError::Panicked(_) => "load again",
        }
    }

    /// The kind, the text, and the place of the error, if it has one.
    pub fn to_json(&self) -> Value {
        let mut value = json!({"message": self.to_string(), "help": self.help()});
        let (kind, path) = match self {
            LoadError::Weights(Error::Format { path, .. }) => ("format", Some(path)),
            LoadError::Weights(Error::Read { path, .. } | Error::Write { path, .. }) => ("io", Some(path)),
            LoadError::Weights(Error::Damaged { path, .. }) => ("damaged", Some(path)),
            LoadError::Weights(Error::Refused { path, .. }) => ("format", Some(path)),
            LoadError::Weights(_) => ("format", None),
            LoadError::Cuda { .. } | LoadError::NoDriver(_) => ("cuda", None),
            LoadError::Argument(_) => ("argument", None),
            LoadError::Cancelled => ("cancelled", None),
            LoadError::Panicked(_) => ("panicked", None),
        };
        value["kind"] = json!(kind);
        if let Some(path) = path {
            value["path"] = json!(path.display().to_string());
        }
        if let LoadError::Weights(Error::Damaged { tensor, damage, .. }) = self {
            value["tensor"] = json!(tensor);
            if let StreamError::Checksum { bytes, .. } | StreamError::Chunk { bytes, .. } = damage {
                value["bytes"] = json!([bytes.start, bytes.end]);
            }
        }
        value
    }
}
