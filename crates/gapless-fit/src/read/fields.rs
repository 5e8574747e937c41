//! Typed access to the keys of a configuration. A key that is missing takes the default that transformers' own class
//! has; one of the wrong type, or larger than any model, is an error with its byte offset.

use super::error::{Fault, Problem};
use super::json::{Json, Value};
use crate::model::Activation;

/// No dimension of a model is larger, and the product of two of them fits 64 bits, so that shapes can be computed
/// without a check at each step.
const LARGEST: u64 = (1 << 31) - 1;
/// The most layers, experts or stages, which become lists.
const LONGEST: u64 = 10_000;

/// The object of a configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a>(pub(crate) &'a Json);

impl<'a> Fields<'a> {
    pub(crate) fn get(self, key: &str) -> Option<&'a Json> {
        self.0.get(key)
    }

    pub(crate) fn has(self, key: &str) -> bool {
        self.get(key).is_some_and(|value| !value.is_null())
    }

    pub(crate) fn fault<T>(self, key: &str, what: impl Into<String>) -> Result<T, Fault> {
        let offset = self.get(key).map(|value| value.at);
        Err(Box::new(Problem::Key { key: key.to_owned(), offset, what: what.into() }))
    }

    /// A size, or `None` if the key is missing or null.
    pub(crate) fn optional(self, key: &str) -> Result<Option<u64>, Fault> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let number = match value.value {
            Value::Null => return Ok(None),
            Value::Int(number) => number,
            Value::Float(number) if number.fract() == 0.0 && number.abs() < 1e18 => number as i128,
            _ => return self.fault(key, format!("must be an integer, but is {}", value.kind())),
        };
        match u64::try_from(number) {
            Ok(number) if number <= LARGEST => Ok(Some(number)),
            Ok(_) => self.fault(key, format!("{number} is larger than any model's ({LARGEST})")),
            Err(_) => self.fault(key, format!("must not be negative or that large, but is {number}")),
        }
    }

    /// A size of at least 1.
    pub(crate) fn size(self, key: &str, default: u64) -> Result<u64, Fault> {
        match self.optional(key)?.unwrap_or(default) {
            0 => self.fault(key, "must be at least 1"),
            number => Ok(number),
        }
    }

    /// A size of at least 1, or `None` if the key is missing or null.
    pub(crate) fn optional_size(self, key: &str) -> Result<Option<u64>, Fault> {
        match self.optional(key)? {
            Some(0) => self.fault(key, "must be at least 1, or null"),
            size => Ok(size),
        }
    }

    /// A size under the first of several names for it that is there.
    pub(crate) fn size_of(self, keys: &[&str], default: u64) -> Result<u64, Fault> {
        let key = keys.iter().find(|key| self.has(key)).unwrap_or(&keys[0]);
        self.size(key, default)
    }

    /// A count of entries that become a list.
    pub(crate) fn number_of(self, keys: &[&str], default: u64) -> Result<u64, Fault> {
        let key = keys.iter().find(|key| self.has(key)).unwrap_or(&keys[0]);
        let number = self.optional(key)?.unwrap_or(default);
        if number == 0 || number > LONGEST {
            return self.fault(key, format!("must be between 1 and {LONGEST}, but is {number}"));
        }
        Ok(number)
    }

    pub(crate) fn flag(self, key: &str, default: bool) -> Result<bool, Fault> {
        match self.get(key).map(|value| (&value.value, value)) {
            None => Ok(default),
            // Python takes None for false.
            Some((Value::Null, _)) => Ok(false),
            Some((Value::Bool(flag), _)) => Ok(*flag),
            Some((_, value)) => self.fault(key, format!("must be true or false, but is {}", value.kind())),
        }
    }

    /// A probability.
    pub(crate) fn share(self, key: &str, default: f64) -> Result<f64, Fault> {
        let number = match self.get(key).map(|value| &value.value) {
            None | Some(Value::Null) => return Ok(default),
            Some(Value::Float(number)) => *number,
            Some(Value::Int(number)) => *number as f64,
            Some(_) => return self.fault(key, "must be a number"),
        };
        if !(0.0..=1.0).contains(&number) {
            return self.fault(key, format!("must be between 0 and 1, but is {number}"));
        }
        Ok(number)
    }

    pub(crate) fn text(self, key: &str) -> Result<Option<&'a str>, Fault> {
        match self.get(key).map(|value| &value.value) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(_) => self.fault(key, "must be a string"),
        }
    }

    /// Sizes of stages and the like: at most 10,000.
    pub(crate) fn sizes(self, key: &str) -> Result<Option<Vec<u64>>, Fault> {
        let Some(value) = self.get(key).filter(|value| !value.is_null()) else { return Ok(None) };
        let Some(items) = value.list() else { return self.fault(key, "must be a list of integers") };
        if items.len() > 10_000 {
            return self.fault(key, "must have at most 10,000 entries");
        }
        let mut sizes = Vec::with_capacity(items.len());
        for item in items {
            match item.unsigned() {
                Some(size) if size <= LARGEST => sizes.push(size),
                _ => return self.fault(key, "must be a list of integers"),
            }
        }
        Ok(Some(sizes))
    }

    /// One side of a size that may be written as a number or as a pair of equal ones.
    pub(crate) fn side(self, key: &str, default: u64) -> Result<u64, Fault> {
        if self.get(key).is_some_and(|value| value.list().is_some()) {
            return match self.sizes(key)?.as_deref() {
                Some([height, width]) if height == width && *height > 0 => Ok(*height),
                _ => self.fault(key, "must be a number, or two equal ones"),
            };
        }
        self.size(key, default)
    }

    pub(crate) fn activation(self, key: &str, default: Activation) -> Result<Activation, Fault> {
        let Some(name) = self.text(key)? else { return Ok(default) };
        match activation(name) {
            Some(activation) => Ok(activation),
            None => self.fault(key, format!("the activation \"{}\" is not known", super::json::brief(name))),
        }
    }
}

/// An activation by transformers' name for it.
pub(crate) fn activation(name: &str) -> Option<Activation> {
    Some(match name {
        "gelu" | "gelu_python" => Activation::Gelu,
        // Both are written out in operators.
        "gelu_new" | "gelu_fast" => Activation::GeluNew,
        "gelu_pytorch_tanh" => Activation::GeluTanh,
        "relu" => Activation::Relu,
        "silu" | "swish" => Activation::Silu,
        "quick_gelu" => Activation::Quick,
        _ => return None,
    })
}
