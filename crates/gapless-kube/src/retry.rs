//! Pods whose bind has failed, and which the scheduler should try again soon.
//!
//! A scheduler puts such a pod aside. From 1.24 on it tries again after its usual pause of 1 to 10 s; an older one may
//! wait a minute, unless the pod changes. So after a pause the pod gets a new value of an annotation, which means
//! nothing else. The pause must be long enough for the scheduler to have put the pod aside: it ignores changes before.
//! The pause doubles with each failure, so that a pod that cannot be bound is not tried in a tight loop.

use crate::api::{Api, ApiError};
use crate::target::Target;
use rustc_hash::FxHashMap;
use serde_json::{Value, json};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The annotation: nanoseconds of the clock, so that two replicas write different values.
pub const RETRIED: &str = "gapless.dev/bind-retried";
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The pause doubles so often.
const DOUBLINGS: u32 = 5;
/// Pods that are remembered; beyond that the scheduler's own pause has to do.
const MOST: usize = 10_000;

/// A pod that is to be tried again.
#[derive(Clone, Debug)]
pub struct Waiting {
    pub uid: String,
    /// `NAMESPACE/NAME`.
    pub name: String,
    path: String,
}

#[derive(Debug)]
struct Failed {
    failures: u32,
    due: Option<(Instant, Waiting)>,
}

/// All of them.
#[derive(Debug, Default)]
pub struct Retries {
    pods: Mutex<FxHashMap<String, Failed>>,
}

impl Retries {
    fn pods(&self) -> MutexGuard<'_, FxHashMap<String, Failed>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bind of this pod has failed.
    pub fn later(&self, target: Target<'_>, now: Instant) {
        let mut pods = self.pods();
        if pods.len() >= MOST {
            // Those that wait for nothing are only a count.
            pods.retain(|_, pod| pod.due.is_some());
        }
        if pods.len() >= MOST && !pods.contains_key(target.uid) {
            return;
        }
        let pod = pods.entry(target.uid.to_owned()).or_insert(Failed { failures: 0, due: None });
        let pause = FIRST_PAUSE * (1 << pod.failures.min(DOUBLINGS));
        pod.failures = pod.failures.saturating_add(1);
        let name = format!("{}/{}", target.namespace, target.name);
        let waiting = Waiting { uid: target.uid.to_owned(), name, path: target.path() };
        pod.due = Some((now + pause, waiting));
    }

    /// The pod is bound.
    pub fn forget(&self, uid: &str) {
        self.pods().remove(uid);
    }

    /// Those whose pause is over. Each is given once.
    pub fn due(&self, now: Instant) -> Vec<Waiting> {
        let mut pods = self.pods();
        let over = |pod: &mut Failed| match &pod.due {
            Some((when, _)) if *when <= now => pod.due.take().map(|(_, waiting)| waiting),
            _ => None,
        };
        pods.values_mut().filter_map(over).collect()
    }
}

/// A change that means nothing, of the pod with this id.
pub(crate) fn mark(uid: &str) -> Value {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    json!({"metadata": {"uid": uid, "annotations": {RETRIED: since.as_nanos().to_string()}}})
}

impl Waiting {
    /// Changes the pod, if it is still this one.
    pub fn touch(&self, api: &Api) -> Result<(), ApiError> {
        match api.patch(&self.path, &mark(&self.uid)) {
            // It is gone, or another one by now.
            Err(error) if matches!(error.status(), Some(404 | 409 | 422)) => Ok(()),
            result => result.map(|_| ()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_and_a_bound_pod_is_forgotten() {
        let retries = Retries::default();
        let target = Target { namespace: "d", name: "p", uid: "u", node: "n" };
        let now = Instant::now();
        let mut pauses = Vec::new();
        for _ in 0..8 {
            retries.later(target, now);
            let second = (1..100).find(|&s| !retries.due(now + Duration::from_secs(s)).is_empty());
            pauses.push(second.expect("it comes"));
            assert!(retries.due(now + Duration::from_secs(1000)).is_empty(), "each is given once");
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 32, 32]);
        retries.later(target, now);
        retries.forget("u");
        assert!(retries.due(now + Duration::from_secs(1000)).is_empty());
        retries.later(target, now);
        assert_eq!(retries.due(now + Duration::from_secs(1)).len(), 1, "the count began anew");
    }
}
