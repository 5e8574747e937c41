//! Settings of the models as text: `key:value,key:value`. An unknown key or an invalid value is an error that lists
//! what the model accepts; nothing is ignored.

use gapless_trace::Bytes;

/// The names of a model's settings, each with a value as an example.
pub type Keys = &'static [(&'static str, &'static str)];

/// The reason why a model cannot be built.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SettingsError {
    #[error("unknown allocator {name:?}: use one of {}", .known.join(", "))]
    UnknownModel { name: String, known: &'static [&'static str] },
    #[error("{model} has no setting {key:?}; {}", list(.known))]
    UnknownKey { model: &'static str, key: String, known: Keys },
    #[error("{model}: {key:?} needs a value: write {key}:{example}")]
    NoValue { model: &'static str, key: String, example: &'static str },
    #[error("{model}: {key} is given twice; keep one of them")]
    Repeated { model: &'static str, key: String },
    #[error("{model}: {key} cannot be {value:?}: give {wanted}")]
    BadValue { model: &'static str, key: String, value: String, wanted: &'static str },
    #[error(
        "{model}: {key} is {asked}, but the card has {available} to give; lower it, or replay on a larger card"
    )]
    DoesNotFit { model: &'static str, key: &'static str, asked: Bytes, available: Bytes },
    #[error("{model}: initial is {initial}, more than maximum, {maximum}; raise maximum or lower initial")]
    InitialOverMaximum { model: &'static str, initial: Bytes, maximum: Bytes },
}

fn list(known: Keys) -> String {
    let names: Vec<&str> = known.iter().map(|&(name, _)| name).collect();
    if names.is_empty() { "it has none".to_owned() } else { format!("it has {}", names.join(", ")) }
}

/// One `key:value` of a model's settings, with the names that a message about it needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting<'a> {
    model: &'static str,
    pub(super) key: &'a str,
    value: &'a str,
}

/// The settings in `text`, each one of `keys`, which have a value as an example.
pub(super) fn settings<'a>(
    model: &'static str,
    keys: Keys,
    text: &'a str,
) -> Result<Vec<Setting<'a>>, SettingsError> {
    let mut found: Vec<Setting<'a>> = Vec::new();
    for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once(':').unwrap_or((pair, ""));
        let (key, value) = (key.trim(), value.trim());
        let Some(&(_, example)) = keys.iter().find(|&&(known, _)| known == key) else {
            return Err(SettingsError::UnknownKey { model, key: key.to_owned(), known: keys });
        };
        if value.is_empty() {
            return Err(SettingsError::NoValue { model, key: key.to_owned(), example });
        }
        if found.iter().any(|setting| setting.key == key) {
            return Err(SettingsError::Repeated { model, key: key.to_owned() });
        }
        found.push(Setting { model, key, value });
    }
    Ok(found)
}

impl Setting<'_> {
    fn bad(&self, wanted: &'static str) -> SettingsError {
        let (model, key, value) = (self.model, self.key.to_owned(), self.value.to_owned());
        SettingsError::BadValue { model, key, value, wanted }
    }

    pub(super) fn flag(&self) -> Result<bool, SettingsError> {
        match self.value.to_ascii_lowercase().as_str() {
            "true" | "on" | "yes" | "1" => Ok(true),
            "false" | "off" | "no" | "0" => Ok(false),
            _ => Err(self.bad("true or false")),
        }
    }

    /// A share of the card, above 0 and at most 1.
    pub(super) fn share(&self) -> Result<f64, SettingsError> {
        let share = self.value.parse::<f64>().ok().filter(|&share| share > 0.0 && share <= 1.0);
        share.ok_or_else(|| self.bad("a share of the card, above 0 and at most 1, such as 0.75"))
    }

    /// A number of bytes for which `fits` holds; only zero needs no unit.
    pub(super) fn bytes(
        &self,
        wanted: &'static str,
        fits: impl Fn(u64) -> bool,
    ) -> Result<u64, SettingsError> {
        let has_unit = self.value.ends_with(|last: char| last.is_ascii_alphabetic());
        let bytes = self.value.parse::<Bytes>().ok().map(|bytes| bytes.0);
        let bytes = bytes.filter(|&bytes| (has_unit || bytes == 0) && fits(bytes));
        bytes.ok_or_else(|| self.bad(wanted))
    }
}
