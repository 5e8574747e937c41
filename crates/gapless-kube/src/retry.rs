//! Pods whose bind has failed, and which the scheduler should try again soon.
//!
//! A scheduler puts such a pod aside. From 1.24 on it tries again after its usual pause of 1 to 10 s; an older one
//! may wait a minute, unless the pod changes. So after a pause the pod gets a new value of an annotation that has no
//! other purpose. The pause must be long enough for the scheduler to have put the pod aside: it ignores earlier
//! changes. The pause doubles with each failure, so that a pod that cannot be bound is not tried in a tight loop.

use crate::api::{Api, ApiError};
use crate::target::Target;
use rustc_hash::FxHashMap;
use serde_json::{Value, json};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The annotation: nanoseconds of the clock, so that two replicas write different values.
pub const RETRIED: &str = "gapless.dev/bind-retried";
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The number of doublings of the pause.
const DOUBLINGS: u32 = 5;
/// The most remembered pods. Further pods wait for the scheduler's own pause.
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

/// All pods that are to be tried again.
#[derive(Debug, Default)]
pub struct Retries {
    pods: Mutex<FxHashMap<String, Failed>>,
}

impl Retries {
    fn pods(&self) -> MutexGuard<'_, FxHashMap<String, Failed>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the bind of this pod has failed.
    pub fn later(&self, target: Target<'_>, now: Instant) {
        let mut pods = self.pods();
        if pods.len() >= MOST {
            // Pods that wait for no retry only keep a count of failures, so they are dropped first.
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

    /// Forgets a pod that is bound.
    pub fn forget(&self, uid: &str) {
        self.pods().remove(uid);
    }

    /// The pods whose pause is over. Each is returned once per failure.
    pub fn due(&self, now: Instant) -> Vec<Waiting> {
        let mut pods = self.pods();
        let over = |pod: &mut Failed| match &pod.due {
            Some((when, _)) if *when <= now => pod.due.take().map(|(_, waiting)| waiting),
            _ => None,
        };
        pods.values_mut().filter_map(over).collect()
    }
}

/// A change without an effect, for the pod with this id.
pub(crate) fn mark(uid: &str) -> Value {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    json!({"metadata": {"uid": uid, "annotations": {RETRIED: since.as_nanos().to_string()}}})
}

impl Waiting {
    /// Changes the pod, if it is still this one.
    pub fn touch(&self, api: &Api) -> Result<(), ApiError> {
        match api.patch(&self.path, &mark(&self.uid)) {
            // The pod is gone, or another one has its name.
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
