//! The pod that a scheduler asks to bind, by its names, and a check that these are valid names.

use crate::names;

/// A pod that is to be bound, as the scheduler names it.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    pub uid: &'a str,
    pub node: &'a str,
}

impl Target<'_> {
    /// An error unless these are valid names. They become parts of paths.
    pub fn check(&self) -> Result<(), String> {
        let Target { namespace, name, uid, node } = *self;
        let parts = [
            ("PodNamespace", namespace, names::is_namespace(namespace)),
            ("PodName", name, names::is_name(name)),
            ("PodUID", uid, names::is_uid(uid)),
            ("Node", node, names::is_name(node)),
        ];
        match parts.into_iter().find(|(.., is_right)| !is_right) {
            Some((what, text, _)) => {
                Err(format!("{what}: invalid name {text:?}: use lower-case letters, digits, - and ."))
            }
            None => Ok(()),
        }
    }

    /// True if these are valid names of a pod.
    pub fn is_pod(&self) -> bool {
        names::is_namespace(self.namespace) && names::is_name(self.name) && names::is_uid(self.uid)
    }

    pub fn path(&self) -> String {
        format!("/api/v1/namespaces/{}/pods/{}", self.namespace, self.name)
    }
}
