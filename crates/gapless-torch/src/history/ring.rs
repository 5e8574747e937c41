//! The newest entries of a history, in PyTorch's order.

/// A list of at most so many entries. As in PyTorch's own, a lower limit removes none: entries of the level "all" are
/// still there after "state", which asks for one entry.
#[derive(Debug)]
pub struct Ring<T> {
    list: Vec<T>,
    /// The place of the oldest entry if the list is full: the next entry replaces it.
    next: usize,
}

impl<T> Default for Ring<T> {
    fn default() -> Ring<T> {
        Ring::new()
    }
}

impl<T> Ring<T> {
    pub(super) const fn new() -> Ring<T> {
        Ring { list: Vec::new(), next: 0 }
    }

    pub(super) fn push(&mut self, entry: T, most: usize) {
        if self.list.len() < most {
            return self.list.push(entry);
        }
        if let Some(place) = self.list.get_mut(self.next) {
            *place = entry;
            self.next += 1;
        }
        if self.next >= most {
            self.next = 0;
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Ring::new();
    }

    /// Oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.list[self.next..].iter().chain(&self.list[..self.next])
    }
}

#[cfg(test)]
mod tests {
    use super::Ring;

    /// The ring of PyTorch's own allocator, in its own words.
    #[derive(Default)]
    struct Theirs {
        entries: Vec<u32>,
        next: usize,
    }

    impl Theirs {
        fn insert(&mut self, entry: u32, most: usize) {
            if self.entries.len() < most {
                self.entries.push(entry);
            } else {
                self.entries[self.next] = entry;
                self.next += 1;
                if self.next == most {
                    self.next = 0;
                }
            }
        }

        fn get(&self) -> Vec<u32> {
            let mut list = self.entries.clone();
            list.rotate_left(self.next);
            list
        }
    }

    #[test]
    fn entries_are_those_of_pytorchs_ring_also_where_their_number_is_lowered_and_raised() {
        // No number falls below the next place: PyTorch's own ring would then index beyond its list.
        let plans: [&[(usize, usize)]; 5] = [
            &[(3, 10)],
            &[(10, 7), (1, 5), (10, 9)],
            &[(6, 9), (4, 1), (100, 20)],
            &[(5, 5), (2, 3), (5, 4), (9, 12)],
            &[(1, 4), (8, 3)],
        ];
        for plan in plans {
            let (mut ours, mut theirs, mut entry) = (Ring::new(), Theirs::default(), 0);
            for &(most, count) in plan {
                for _ in 0..count {
                    entry += 1;
                    ours.push(entry, most);
                    theirs.insert(entry, most);
                }
                assert_eq!(ours.iter().copied().collect::<Vec<_>>(), theirs.get(), "{plan:?} at {most}");
            }
            ours.clear();
            assert_eq!(ours.iter().count(), 0);
        }
    }

    #[test]
    fn a_ring_stays_whole_where_its_number_falls_below_the_next_place() {
        let mut ring = Ring::new();
        for entry in 0..9 {
            ring.push(entry, 6);
        }
        for entry in 9..14 {
            ring.push(entry, 2);
        }
        let list: Vec<i32> = ring.iter().copied().collect();
        assert!(list.len() == 6 && list.contains(&13), "{list:?}");
    }
}
