//! `gapless.dev/gpu-memory: auto`: the size comes from what is known of the pod's program.
//!
//! ```text
//! gapless.dev/fit: llama-3.2-1b --batch 8       what `gapless fit` would be given: a built-in name, and the run
//! gapless.dev/fit-config: {"model_type": ...}   or a config.json, with the run in gapless.dev/fit
//! gapless.dev/fit-config-map: my-model          or a ConfigMap with `config.json`, and perhaps the run in `fit`
//! gapless.dev/trace: train.pickle               or the trace of an earlier run, in the folder that the extender has
//! ```
//!
//! This module finds out what is asked; the program that serves brings the [`Sizer`] that answers. Answers are kept, so
//! that the scheduler waits only once for pods that are alike.

use crate::api::Api;
use crate::names;
use rustc_hash::FxHashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

pub const FIT: &str = "gapless.dev/fit";
pub const FIT_CONFIG: &str = "gapless.dev/fit-config";
pub const FIT_CONFIG_MAP: &str = "gapless.dev/fit-config-map";
pub const TRACE: &str = "gapless.dev/trace";
/// Answers that are kept; then all are forgotten.
const MOST: usize = 10_000;

/// What a pod's annotations say of its program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Auto {
    pub fit: String,
    pub config: String,
    pub config_map: String,
    pub trace: String,
    pub namespace: String,
}

/// A question for the sizer. One of the three is given, and `arguments` say more about the run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Wish {
    /// A built-in model, with the run.
    Fit(String),
    /// The text of a config.json, and the run.
    Config(String, String),
    /// The name of a trace.
    Trace(String),
}

/// Tells how many bytes of a GPU a program takes, with the margin for what is not known exactly.
pub trait Sizer: Send + Sync + std::fmt::Debug {
    fn size(&self, wish: &Wish) -> Result<u64, String>;
}

type Kept = Arc<OnceLock<Result<u64, String>>>;

/// The answers of a sizer.
#[derive(Debug, Default)]
pub struct Sizes {
    sizer: Option<Box<dyn Sizer>>,
    known: Mutex<FxHashMap<Wish, Kept>>,
}

impl Sizes {
    pub fn new(sizer: Box<dyn Sizer>) -> Sizes {
        Sizes { sizer: Some(sizer), known: Mutex::default() }
    }

    /// The bytes of each GPU that a pod needs.
    /// Without an API server, no ConfigMap can be read.
    pub fn of(&self, api: Option<&Api>, auto: &Auto) -> Result<u64, String> {
        let Some(sizer) = &self.sizer else {
            return Err("gpu-memory: auto is not served here: set a size such as 18GiB".to_owned());
        };
        let wish = auto.wish(api)?;
        let kept = {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            if known.len() >= MOST {
                known.clear();
            }
            Arc::clone(known.entry(wish.clone()).or_default())
        };
        // Others who ask the same wait for the answer.
        kept.get_or_init(|| sizer.size(&wish)).clone()
    }
}

impl Auto {
    fn wish(&self, api: Option<&Api>) -> Result<Wish, String> {
        let given =
            [&self.config, &self.config_map, &self.trace].iter().filter(|text| !text.is_empty()).count();
        if given > 1 {
            return Err(format!("set one of {FIT_CONFIG}, {FIT_CONFIG_MAP} and {TRACE}"));
        }
        if !self.trace.is_empty() {
            return Ok(Wish::Trace(self.trace.clone()));
        }
        if !self.config.is_empty() {
            return Ok(Wish::Config(self.config.clone(), self.fit.clone()));
        }
        if self.config_map.is_empty() {
            return match self.fit.trim() {
                "" => Err(format!(
                    "gpu-memory: auto needs {FIT}, {FIT_CONFIG}, {FIT_CONFIG_MAP} or {TRACE}: for example {FIT}: llama-3.2-1b --batch 8"
                )),
                fit => Ok(Wish::Fit(fit.to_owned())),
            };
        }
        let (namespace, name) = (&self.namespace, &self.config_map);
        if !names::is_name(name) {
            return Err(format!("{FIT_CONFIG_MAP}: invalid name {name:?}"));
        }
        let api = api.ok_or_else(|| {
            format!("{FIT_CONFIG_MAP}: only the cluster has ConfigMaps: use {FIT} or {FIT_CONFIG} here")
        })?;
        if !names::is_namespace(namespace) {
            return Err(format!("invalid namespace {namespace:?}"));
        }
        let object = api
            .get(&format!("/api/v1/namespaces/{namespace}/configmaps/{name}"))
            .map_err(|error| format!("ConfigMap {namespace}/{name}: {error}"))?;
        let of = |key: &str| object["data"][key].as_str().unwrap_or_default().to_owned();
        let fit = if self.fit.is_empty() { of("fit") } else { self.fit.clone() };
        match of("config.json") {
            config if !config.is_empty() => Ok(Wish::Config(config, fit)),
            _ if !fit.trim().is_empty() => Ok(Wish::Fit(fit)),
            _ => Err(format!("ConfigMap {namespace}/{name} has neither config.json nor fit")),
        }
    }
}
