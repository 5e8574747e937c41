//! `gapless.dev/gpu-memory: auto`: the size comes from facts on the pod's program.
//!
//! ```text
//! gapless.dev/fit: llama-3.2-1b --batch 8       what `gapless fit` would be given: a built-in name, and the run
//! gapless.dev/fit-config: {"model_type": ...}   or a config.json, with the run in gapless.dev/fit
//! gapless.dev/fit-config-map: my-model          or a ConfigMap with `config.json`, and perhaps the run in `fit`
//! gapless.dev/trace: train.pickle               or the trace of an earlier run, in the folder that the extender has
//! ```
//!
//! This module reads the question; the serving program provides the [`Sizer`] that answers it. Answers are kept, so
//! that the scheduler waits only once for pods that are alike. A size that takes long is computed on another thread,
//! and [`Sizes::within`] returns `None` until then.

use crate::api::Api;
use crate::limits::{MOST_QUESTIONS, MOST_SIZES, SIZE_COUNTS, SIZED_AT_ONCE};
use crate::names;
use rustc_hash::FxHashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

pub const FIT: &str = "gapless.dev/fit";
pub const FIT_CONFIG: &str = "gapless.dev/fit-config";
pub const FIT_CONFIG_MAP: &str = "gapless.dev/fit-config-map";
pub const TRACE: &str = "gapless.dev/trace";

/// A pod's annotations on its program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Auto {
    pub fit: String,
    pub config: String,
    pub config_map: String,
    pub trace: String,
    pub namespace: String,
}

/// A question for the sizer. Each has one source of the size.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Wish {
    /// A built-in model, with the run.
    Fit(String),
    /// The text of a config.json, and the run.
    Config(String, String),
    /// The name of a trace.
    Trace(String),
}

/// Computes the bytes of a GPU that a program takes, with a margin for uncertainty.
pub trait Sizer: Send + Sync + std::fmt::Debug {
    fn size(&self, wish: &Wish) -> Result<u64, String>;
}

type Answer = Result<u64, String>;

/// The answers of a sizer.
#[derive(Clone, Debug, Default)]
pub struct Sizes(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    sizer: Option<Box<dyn Sizer>>,
    /// Answers by question.
    known: Mutex<FxHashMap<Wish, Arc<OnceLock<Answer>>>>,
    /// Answers by annotations; `None`: being computed.
    told: Mutex<FxHashMap<Auto, Option<(Answer, Instant)>>>,
    done: Condvar,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sizes {
    pub fn new(sizer: Box<dyn Sizer>) -> Sizes {
        Sizes(Arc::new(Shared { sizer: Some(sizer), ..Shared::default() }))
    }

    /// The bytes of each GPU that a pod needs. Waits for the computation. Without an API server, no
    /// ConfigMap can be read.
    pub fn of(&self, api: Option<&Api>, auto: &Auto) -> Answer {
        let Some(sizer) = &self.0.sizer else {
            return Err("gpu-memory: auto is not served here: set a size such as 18GiB".to_owned());
        };
        let wish = auto.wish(api)?;
        let kept = {
            let mut known = locked(&self.0.known);
            if is_full(known.keys().map(Wish::bytes)) {
                known.clear();
            }
            Arc::clone(known.entry(wish.clone()).or_default())
        };
        // Other threads with the same question wait for the answer.
        kept.get_or_init(|| sizer.size(&wish)).clone()
    }

    /// The same, if it is known within this time. One thread computes it for all callers.
    pub fn within(&self, api: &Arc<Api>, auto: &Auto, patience: Duration) -> Option<Answer> {
        let counts = |at: &Instant| auto.config_map.is_empty() || at.elapsed() < SIZE_COUNTS;
        let mut told = locked(&self.0.told);
        match told.get(auto) {
            Some(Some((answer, at))) if counts(at) => return Some(answer.clone()),
            Some(None) => {}
            _ => {
                if told.values().filter(|answer| answer.is_none()).count() >= SIZED_AT_ONCE {
                    return None;
                }
                if is_full(told.keys().map(Auto::bytes)) {
                    told.retain(|_, answer| answer.is_none());
                }
                told.insert(auto.clone(), None);
                let (sizes, api, auto) = (self.clone(), Arc::clone(api), auto.clone());
                std::thread::spawn(move || {
                    let work = || sizes.of(Some(&api), &auto);
                    let answer = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
                    let answer = answer.unwrap_or_else(|_| Err("the size cannot be worked out".to_owned()));
                    locked(&sizes.0.told).insert(auto, Some((answer, Instant::now())));
                    sizes.0.done.notify_all();
                });
            }
        }
        let is_open = |told: &mut FxHashMap<Auto, Option<(Answer, Instant)>>| {
            told.get(auto).is_some_and(Option::is_none)
        };
        let waited = self.0.done.wait_timeout_while(told, patience, is_open);
        let (told, _) = waited.unwrap_or_else(PoisonError::into_inner);
        told.get(auto).cloned().flatten().map(|(answer, _)| answer)
    }
}

/// True if no more questions of these sizes are to be remembered.
fn is_full(questions: impl ExactSizeIterator<Item = usize>) -> bool {
    questions.len() >= MOST_SIZES || questions.sum::<usize>() >= MOST_QUESTIONS
}

impl Wish {
    fn bytes(&self) -> usize {
        match self {
            Wish::Config(config, run) => config.len() + run.len(),
            Wish::Fit(text) | Wish::Trace(text) => text.len(),
        }
    }
}

impl Auto {
    fn bytes(&self) -> usize {
        let Auto { fit, config, config_map, trace, namespace } = self;
        [fit, config, config_map, trace, namespace].iter().map(|text| text.len()).sum()
    }

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Address;

    #[derive(Debug)]
    struct One;

    impl Sizer for One {
        fn size(&self, _: &Wish) -> Answer {
            Ok(1)
        }
    }

    /// An annotation has up to 256 KiB, and anybody who makes pods can make one after the other.
    #[test]
    fn questions_take_bounded_memory() {
        let address = Address { host: "127.0.0.1".to_owned(), port: 1, tls: None, token: None };
        let (api, sizes) = (Arc::new(Api::new(address)), Sizes::new(Box::new(One)));
        let large = "x".repeat(256 << 10);
        let kinds: [fn(String) -> Auto; 3] = [
            |text| Auto { fit: text, ..Auto::default() },
            |text| Auto { config: text, ..Auto::default() },
            |text| Auto { trace: text, ..Auto::default() },
        ];
        for turn in 0..3 * MOST_QUESTIONS / large.len() {
            let auto = kinds[turn % 3](format!("{turn}{large}"));
            while sizes.within(&api, &auto, Duration::from_secs(60)).is_none() {}
        }
        let told: usize = locked(&sizes.0.told).keys().map(Auto::bytes).sum();
        let known: usize = locked(&sizes.0.known).keys().map(Wish::bytes).sum();
        for bytes in [told, known] {
            assert!((large.len()..MOST_QUESTIONS + 2 * large.len()).contains(&bytes), "{bytes}");
        }
    }
}
