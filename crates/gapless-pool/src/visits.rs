//! Counts the blocks, pages and free pieces that calls look at. Tests of costs use this count, because times differ on
//! each machine. Without `cfg(test)` nothing of it is compiled.

#[cfg(test)]
std::thread_local! {
    static COUNT: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Counts `count` things that were looked at.
#[inline]
pub(crate) fn add(count: usize) {
    #[cfg(test)]
    COUNT.with(|all| all.set(all.get() + count));
    #[cfg(not(test))]
    let _ = count;
}

/// The number of things that `work` looks at.
#[cfg(test)]
pub(crate) fn of(work: impl FnOnce()) -> usize {
    let before = COUNT.with(std::cell::Cell::get);
    work();
    COUNT.with(std::cell::Cell::get) - before
}
