//! How much was looked at: blocks, pages, free pieces. Tests of what a call costs count this, since a clock tells
//! something else on each machine. Nothing is left of it elsewhere.

#[cfg(test)]
std::thread_local! {
    static COUNT: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// So many things are looked at.
#[inline]
pub(crate) fn add(count: usize) {
    #[cfg(test)]
    COUNT.with(|all| all.set(all.get() + count));
    #[cfg(not(test))]
    let _ = count;
}

/// What `work` looks at.
#[cfg(test)]
pub(crate) fn of(work: impl FnOnce()) -> usize {
    let before = COUNT.with(std::cell::Cell::get);
    work();
    COUNT.with(std::cell::Cell::get) - before
}
