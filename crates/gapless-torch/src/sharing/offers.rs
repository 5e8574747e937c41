//! Bytes that this process offers to others by number: they describe shared memory. The socket hands them out; this
//! module does not read them.

use gapless_cuda::locks::{Guard, Lock};
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Default)]
struct Offers {
    last: u32,
    open: BTreeMap<u32, Arc<[u8]>>,
}

static OFFERS: Lock<Option<Offers>> = Lock::new(|| None);

fn offers() -> Guard<'static, Option<Offers>> {
    OFFERS.lock()
}

/// Offers `bytes`. Returns their number, which this process never uses again.
pub(super) fn add(bytes: Vec<u8>) -> u32 {
    let mut offers = offers();
    let offers = offers.get_or_insert_default();
    offers.last += 1;
    offers.open.insert(offers.last, bytes.into());
    offers.last
}

/// Ends an offer. False if there was none.
pub(super) fn remove(number: u32) -> bool {
    offers().as_mut().is_some_and(|offers| offers.open.remove(&number).is_some())
}

pub(super) fn get(number: u32) -> Option<Arc<[u8]>> {
    offers().as_ref()?.open.get(&number).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_never_used_twice() {
        let first = add(vec![1, 2]);
        assert_eq!(get(first).as_deref(), Some(&[1u8, 2][..]));
        assert!(remove(first) && !remove(first));
        let second = add(vec![3]);
        assert!(second != first && get(first).is_none());
        remove(second);
    }
}
