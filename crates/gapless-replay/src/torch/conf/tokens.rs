//! The words of a text of settings, and the values that stand behind a key.

use super::{ConfError, MIB};
use crate::torch::reserve::Reserve;
use crate::torch::version::TorchVersion;

pub(super) struct Tokens {
    pub(super) list: Vec<String>,
    pub(super) version: TorchVersion,
}

impl Tokens {
    /// A list `[name:VALUE,...]`; of one name the last value that can be used counts.
    pub(super) fn reserves_by_class(&self, i: &mut usize) -> Result<Vec<(String, Reserve)>, ConfError> {
        const KEY: &str = "expandable_segments_reserve_by_class";
        // Any text in this place is taken for the opening bracket.
        self.value(i)?;
        let unfinished = || bad(KEY, "[", "the list must end with ]");
        let mut list: Vec<(String, Reserve)> = Vec::new();
        loop {
            *i += 1;
            let name = self.list.get(*i).ok_or_else(unfinished)?;
            if name == "]" {
                return Ok(list);
            }
            *i += 2;
            if let Some(reserve) = Reserve::read(self.list.get(*i).ok_or_else(unfinished)?) {
                list.retain(|(known, _)| known != name);
                list.push((name.clone(), reserve));
            }
            if self.list.get(*i + 1).ok_or_else(unfinished)? == "," {
                *i += 1;
            }
        }
    }

    /// Steps over the separator at `i`. Releases since 2.9 accept any text there.
    pub(super) fn separator(&self, i: usize, expected: char) -> Result<(), ConfError> {
        let strict = self.version < TorchVersion(2, 9);
        let right = self.list.get(i).is_some_and(|t| t.len() == 1 && t.starts_with(expected));
        if strict && !right {
            let after = self.list[..i].last().cloned().unwrap_or_default();
            return Err(ConfError::Separator { expected, after, version: self.version });
        }
        Ok(())
    }

    /// The value behind the key at `i`, which moves to it.
    pub(super) fn value(&self, i: &mut usize) -> Result<&str, ConfError> {
        let key = &self.list[*i];
        if self.list.len() <= *i + 2 {
            return Err(ConfError::NoValue { key: key.clone() });
        }
        self.separator(*i + 1, ':')?;
        *i += 2;
        Ok(&self.list[*i])
    }

    /// A whole number, read as far as digits go.
    fn number(&self, key: &str, text: &str) -> Result<u64, ConfError> {
        let (negative, rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let value: u64 = rest[..digits].parse().map_err(|_| bad(key, text, "it must be a whole number"))?;
        // The C++ function wraps negative numbers around; so -1 is the largest number there is.
        Ok(if negative { value.wrapping_neg() } else { value })
    }

    pub(super) fn at_least(&self, i: &mut usize, least: u64, rule: &str) -> Result<u64, ConfError> {
        let key = self.list[*i].clone();
        let text = self.value(i)?;
        let number = self.number(&key, text)?.min(u64::MAX / MIB);
        if number < least { Err(bad(&key, text, rule)) } else { Ok(number) }
    }

    pub(super) fn share(
        &self,
        i: &mut usize,
        allowed: impl Fn(f64) -> bool,
        rule: &str,
    ) -> Result<f64, ConfError> {
        let key = self.list[*i].clone();
        let text = self.value(i)?;
        match text.parse::<f64>() {
            Ok(x) if allowed(x) => Ok(x),
            _ => Err(bad(&key, text, rule)),
        }
    }

    pub(super) fn boolean(&self, i: &mut usize) -> Result<bool, ConfError> {
        let key = self.list[*i].clone();
        match self.value(i)? {
            "True" => Ok(true),
            "False" => Ok(false),
            other => Err(bad(&key, other, "it is True or False, written exactly so")),
        }
    }

    pub(super) fn divisions(&self, i: &mut usize, slots: &mut [u32; 16]) -> Result<(), ConfError> {
        const KEY: &str = "roundup_power2_divisions";
        let power = |text: &str, zero: bool| -> Result<u32, ConfError> {
            let n = self.number(KEY, text)?;
            let fine = (zero && n == 0) || n.is_power_of_two();
            u32::try_from(n)
                .ok()
                .filter(|_| fine)
                .ok_or_else(|| bad(KEY, text, "divisions must be a power of two, or 0 for none"))
        };
        let first = self.value(i)?;
        if first != "[" {
            slots.fill(power(first, false)?);
            return Ok(());
        }
        let unfinished = || bad(KEY, "[", "the list must end with ]");
        let (mut last, mut named) = (0, false);
        loop {
            *i += 1;
            let bound = self.list.get(*i).ok_or_else(unfinished)?;
            if bound == "]" {
                return Ok(());
            }
            self.separator(*i + 1, ':')?;
            *i += 2;
            let n = power(self.list.get(*i).ok_or_else(unfinished)?, true)?;
            if bound == ">" {
                // Releases before 2.9 overwrite the last named slot too.
                let from = if self.version < TorchVersion(2, 9) { last } else { last + 1 };
                slots[from..].fill(n);
            } else {
                let mib = self.number(KEY, bound)?;
                if !mib.is_power_of_two() {
                    return Err(bad(KEY, bound, "the bounds of the list must be powers of two, in MiB"));
                }
                let slot = (mib.ilog2() as usize).min(15);
                if !named {
                    slots[..slot].fill(n);
                    named = true;
                }
                slots[slot] = n;
                last = slot;
            }
            if self.list.get(*i + 1).ok_or_else(unfinished)? != "]" {
                *i += 1;
                self.separator(*i, ',')?;
            }
        }
    }
}

pub(super) fn lex(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut word = String::new();
    for c in text.chars() {
        if matches!(c, ',' | ':' | '[' | ']') {
            if !word.is_empty() {
                tokens.push(std::mem::take(&mut word));
            }
            tokens.push(c.to_string());
        } else if !c.is_whitespace() {
            word.push(c);
        }
    }
    if !word.is_empty() {
        tokens.push(word);
    }
    tokens
}

pub(super) fn bad(key: &str, value: &str, rule: &str) -> ConfError {
    ConfError::BadValue { key: key.to_owned(), value: value.to_owned(), rule: rule.to_owned() }
}
