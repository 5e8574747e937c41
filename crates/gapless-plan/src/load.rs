//! The live bytes over the sections of time: add over an interval, largest over an interval, both in O(log n). A tree
//! of intervals in which each node holds the sum added to all of it and the largest below it.

#[derive(Clone, Debug)]
pub(crate) struct Load {
    leaves: usize,
    most: Vec<i64>,
    added: Vec<i64>,
}

impl Load {
    pub(crate) fn new(sections: usize) -> Load {
        let leaves = sections.max(1).next_power_of_two();
        Load { leaves, most: vec![0; leaves * 2], added: vec![0; leaves * 2] }
    }

    pub(crate) fn add(&mut self, span: (u32, u32), size: i64) {
        self.add_below(1, (0, self.leaves), (span.0 as usize, span.1 as usize), size);
    }

    fn add_below(&mut self, node: usize, all: (usize, usize), span: (usize, usize), size: i64) {
        if span.0 >= all.1 || span.1 <= all.0 {
            return;
        }
        if span.0 <= all.0 && all.1 <= span.1 {
            self.most[node] += size;
            self.added[node] += size;
            return;
        }
        let middle = all.0.midpoint(all.1);
        self.add_below(node * 2, (all.0, middle), span, size);
        self.add_below(node * 2 + 1, (middle, all.1), span, size);
        self.most[node] = self.most[node * 2].max(self.most[node * 2 + 1]) + self.added[node];
    }

    /// The most within the span, and the first section that has it.
    pub(crate) fn most(&self, span: (u32, u32)) -> (i64, u32) {
        self.most_below(1, (0, self.leaves), (span.0 as usize, span.1 as usize)).unwrap_or((0, span.0))
    }

    fn most_below(&self, node: usize, all: (usize, usize), span: (usize, usize)) -> Option<(i64, u32)> {
        if span.0 >= all.1 || span.1 <= all.0 {
            return None;
        }
        if all.1 - all.0 == 1 {
            return Some((self.most[node], all.0 as u32));
        }
        let middle = all.0.midpoint(all.1);
        let left = self.most_below_whole(node * 2, (all.0, middle), span);
        let right = self.most_below_whole(node * 2 + 1, (middle, all.1), span);
        let best = match (left, right) {
            (Some(left), Some(right)) if right.0 > left.0 => Some(right),
            (None, right) => right,
            (left, _) => left,
        };
        best.map(|(most, at)| (most + self.added[node], at))
    }

    /// As above; a node that lies in the span as a whole is followed down its largest side only.
    fn most_below_whole(
        &self,
        mut node: usize,
        mut all: (usize, usize),
        span: (usize, usize),
    ) -> Option<(i64, u32)> {
        if !(span.0 <= all.0 && all.1 <= span.1) {
            return self.most_below(node, all, span);
        }
        let most = self.most[node];
        while all.1 - all.0 > 1 {
            let middle = all.0.midpoint(all.1);
            let right = self.most[node * 2 + 1] > self.most[node * 2];
            node = node * 2 + usize::from(right);
            all = if right { (middle, all.1) } else { (all.0, middle) };
        }
        Some((most, all.0 as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn the_tree_says_what_an_array_says() {
        let mut rng = Rng::new(1);
        for sections in [1usize, 2, 3, 7, 8, 33] {
            let (mut load, mut array) = (Load::new(sections), vec![0i64; sections]);
            for _ in 0..300 {
                let start = rng.below(sections as u64) as usize;
                let end = start + 1 + rng.below((sections - start) as u64) as usize;
                let size = rng.below(20) as i64 - 8;
                load.add((start as u32, end as u32), size);
                array[start..end].iter_mut().for_each(|live| *live += size);
                let start = rng.below(sections as u64) as usize;
                let end = start + 1 + rng.below((sections - start) as u64) as usize;
                let (most, at) = load.most((start as u32, end as u32));
                assert_eq!(most, *array[start..end].iter().max().unwrap());
                let first = (start..end).find(|at| array[*at] == most).unwrap();
                assert_eq!(at as usize, first);
            }
        }
    }
}
