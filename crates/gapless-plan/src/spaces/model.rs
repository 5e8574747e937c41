//! The question as the search sees it: each buffer has choices, each choice a cost and pieces (a space and a time), and
//! one choice of each buffer is to be taken so that the pieces of each space pack.
//!
//! A buffer that never moves has one choice for each space. One whose access times are known has, besides, for each two
//! spaces: being elsewhere from one time between accesses to a later one (or from its beginning, or to its end), and
//! being elsewhere in all times between accesses that are at least so long. A move takes one step of time in which both
//! places are held. A buffer without a choice in unlimited spaces has the choice of lying nowhere, which costs more
//! than everything else together; it stands for the answer that there is no room.

use crate::error::{Error, Result};
use crate::problem::{Lifetime, Problem};

use super::{Accesses, Spaces, Usage};

/// The most traffic that a problem may cause in its worst plan, so that sums and prices stay within 128 bits.
const TRAFFIC_LIMIT: u128 = 1 << 80;

/// Up to this many accesses a buffer may be away from any one time between accesses to any later one; beyond, the
/// choices (which grow with the square) are left to single times between accesses, beginnings and ends.
const EVERY_WINDOW: usize = 12;

#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) space: u32,
    pub(super) lifetime: Lifetime,
    spans: (u32, u32),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    pub(super) cost: i128,
    pub(super) buffer: u32,
    pieces: (u32, u32),
}

/// Invariants: `begin[b]..begin[b + 1]` are the choices of buffer b, by cost, at least one; spans are half-open
/// intervals of sections, `span.0 < span.1 <= sections`.
pub(super) struct Model<'a> {
    pub(super) problem: &'a Problem,
    pub(super) spaces: &'a Spaces,
    choices: Vec<Choice>,
    begin: Vec<u32>,
    pieces: Vec<Piece>,
    spans: Vec<(u32, u32)>,
    pub(super) sections: usize,
    no_place: i128,
}

/// A choice for each buffer, with the offsets of the pieces in limited spaces: `(piece, offset)`, one list a space.
#[derive(Clone, Debug)]
pub(super) struct Placing {
    pub(super) choice_of: Vec<u32>,
    pub(super) cost: i128,
    pub(super) offsets: Vec<Vec<(u32, u64)>>,
}

impl<'a> Model<'a> {
    pub(super) fn new(problem: &'a Problem, usages: &[Usage], spaces: &'a Spaces) -> Result<Model<'a>> {
        if usages.len() != problem.len() {
            let what = format!("{} usages for {} buffers; give one for each", usages.len(), problem.len());
            return Err(Error::Spaces { what });
        }
        let mut model = Model {
            problem,
            spaces,
            choices: Vec::new(),
            begin: vec![0],
            pieces: Vec::new(),
            spans: Vec::new(),
            sections: 0,
            no_place: 0,
        };
        let mut worst = 0u128;
        for (index, usage) in usages.iter().enumerate() {
            worst = model
                .add(index, usage)?
                .checked_add(worst)
                .filter(|sum| *sum <= TRAFFIC_LIMIT)
                .ok_or_else(|| Error::Traffic { id: problem.name(index) })?;
        }
        model.no_place = worst as i128 + 1;
        model.set_nowhere();
        model.set_spans();
        Ok(model)
    }

    /// Adds the choices of a buffer and returns the cost of the dearest.
    fn add(&mut self, index: usize, usage: &Usage) -> Result<u128> {
        let buffer = &self.problem.buffers()[index];
        let wrong = |what: String| Error::Buffer { id: self.problem.name(index), what };
        let end = buffer.fixed.unwrap_or_default() + buffer.size;
        let fits = |at: &usize| {
            let room = self.spaces.all()[*at].capacity.is_none_or(|capacity| end <= capacity);
            usage.allowed.contains(*at) && room
        };
        let homes: Vec<usize> = (0..self.spaces.all().len()).filter(fits).collect();
        if homes.is_empty() {
            let what =
                "no space that it may lie in is large enough for it; allow it in a larger one".to_owned();
            return Err(wrong(what));
        }
        let times: &[i64] = match &usage.accesses {
            Accesses::Count(_) => &[],
            Accesses::At(times) => times,
        };
        for (at, time) in times.iter().enumerate() {
            if *time < buffer.lifetime.start || *time >= buffer.lifetime.end {
                return Err(wrong(format!("it is accessed at {time}, outside of its lifetime")));
            }
            if at > 0 && times[at - 1] > *time {
                return Err(wrong(format!(
                    "its access times are not sorted: {} before {time}",
                    times[at - 1]
                )));
            }
        }
        let count = match &usage.accesses {
            Accesses::Count(count) => *count,
            Accesses::At(times) => times.len() as u64,
        };
        let mut paths: Vec<Path> =
            homes.iter().map(|home| Path::whole(*home, buffer.lifetime, count)).collect();
        if !times.is_empty() && buffer.gaps.is_empty() && buffer.fixed.is_none() && buffer.size.0 > 0 {
            for home in &homes {
                for away in homes.iter().filter(|away| *away != home) {
                    excursions(*home, *away, buffer.lifetime, times, &mut paths);
                }
            }
        }
        let mut worst = 0u128;
        let mut costed = Vec::with_capacity(paths.len());
        for path in paths {
            let mut per_byte = 0u128;
            for (space, bytes) in &path.accesses {
                let part = u128::from(self.spaces.all()[*space].cost) * u128::from(*bytes);
                per_byte = per_byte.saturating_add(part);
            }
            let cost = per_byte.saturating_mul(u128::from(buffer.size.0));
            if cost > TRAFFIC_LIMIT {
                return Err(Error::Traffic { id: self.problem.name(index) });
            }
            worst = worst.max(cost);
            costed.push((cost as i128, path.pieces.len(), path.pieces));
        }
        costed.sort();
        costed.dedup();
        for (cost, _, pieces) in costed {
            let first = self.pieces.len() as u32;
            self.pieces.extend(pieces.iter().map(|(space, start, end)| Piece {
                space: *space as u32,
                lifetime: Lifetime::new(*start, *end),
                spans: (0, 0),
            }));
            let pieces = (first, self.pieces.len() as u32);
            self.choices.push(Choice { cost, buffer: index as u32, pieces });
        }
        self.begin.push(self.choices.len() as u32);
        Ok(worst)
    }

    /// Gives those without an unlimited choice that of lying nowhere.
    fn set_nowhere(&mut self) {
        let mut choices = Vec::with_capacity(self.choices.len());
        let mut begin = vec![0];
        for buffer in 0..self.problem.len() {
            let range = self.begin[buffer] as usize..self.begin[buffer + 1] as usize;
            choices.extend_from_slice(&self.choices[range.clone()]);
            if !range.clone().any(|choice| self.is_unlimited(choice as u32)) {
                choices.push(Choice { cost: self.no_place, buffer: buffer as u32, pieces: (0, 0) });
            }
            begin.push(choices.len() as u32);
        }
        (self.choices, self.begin) = (choices, begin);
    }

    fn set_spans(&mut self) {
        let mut times: Vec<i64> = Vec::new();
        let owner = self.owners();
        let parts = |piece: usize| {
            let whole = self.pieces[piece].lifetime;
            let buffer = &self.problem.buffers()[owner[piece] as usize];
            // Only whole lifetimes have gaps: a buffer that moves has none.
            buffer
                .pieces()
                .map(move |part| Lifetime::new(part.start.max(whole.start), part.end.min(whole.end)))
        };
        for piece in 0..self.pieces.len() {
            times.extend(parts(piece).flat_map(|part| [part.start, part.end]));
        }
        times.sort_unstable();
        times.dedup();
        let at = |time: i64| times.binary_search(&time).unwrap_or_else(|at| at) as u32;
        let (mut spans, mut ranges) = (Vec::new(), Vec::with_capacity(self.pieces.len()));
        for piece in 0..self.pieces.len() {
            let first = spans.len() as u32;
            spans.extend(parts(piece).map(|part| (at(part.start), at(part.end))));
            ranges.push((first, spans.len() as u32));
        }
        for (piece, range) in self.pieces.iter_mut().zip(ranges) {
            piece.spans = range;
        }
        self.spans = spans;
        self.sections = times.len().saturating_sub(1);
    }

    /// The buffer of each piece.
    fn owners(&self) -> Vec<u32> {
        let mut owner = vec![0; self.pieces.len()];
        for choice in &self.choices {
            owner[choice.pieces.0 as usize..choice.pieces.1 as usize].fill(choice.buffer);
        }
        owner
    }

    pub(super) fn len(&self) -> usize {
        self.problem.len()
    }

    pub(super) fn choices(&self) -> usize {
        self.choices.len()
    }

    pub(super) fn choice(&self, choice: u32) -> &Choice {
        &self.choices[choice as usize]
    }

    pub(super) fn choices_of(&self, buffer: usize) -> std::ops::Range<u32> {
        self.begin[buffer]..self.begin[buffer + 1]
    }

    pub(super) fn pieces_of(&self, choice: u32) -> impl Iterator<Item = (u32, &Piece)> + '_ {
        let (first, last) = self.choices[choice as usize].pieces;
        (first..last).map(|piece| (piece, &self.pieces[piece as usize]))
    }

    pub(super) fn piece(&self, piece: u32) -> &Piece {
        &self.pieces[piece as usize]
    }

    pub(super) fn spans(&self, piece: &Piece) -> &[(u32, u32)] {
        &self.spans[piece.spans.0 as usize..piece.spans.1 as usize]
    }

    pub(super) fn size(&self, buffer: u32) -> u64 {
        self.problem.buffers()[buffer as usize].size.0
    }

    pub(super) fn capacity(&self, space: usize) -> Option<u64> {
        self.spaces.all()[space].capacity.map(|capacity| capacity.0)
    }

    /// The most bytes that may be alive in each space when this share of it stays free.
    pub(super) fn capacities(&self, margin: f64) -> Vec<Option<u64>> {
        let spaces = 0..self.spaces.all().len();
        spaces.map(|at| self.capacity(at).map(|all| all - (all as f64 * margin) as u64)).collect()
    }

    /// True if all pieces lie in unlimited spaces; lying nowhere does not count.
    fn is_unlimited(&self, choice: u32) -> bool {
        let mut pieces = self.pieces_of(choice).peekable();
        pieces.peek().is_some() && pieces.all(|(_, piece)| self.capacity(piece.space as usize).is_none())
    }

    /// The cheapest choice that needs no room in limited spaces.
    pub(super) fn last_resort(&self, buffer: usize) -> u32 {
        let mut choices = self.choices_of(buffer);
        let free = |choice: &u32| {
            self.pieces_of(*choice).all(|(_, piece)| self.capacity(piece.space as usize).is_none())
        };
        choices.find(free).unwrap_or(self.begin[buffer])
    }

    pub(super) fn cost(&self, choice_of: &[u32]) -> i128 {
        choice_of.iter().map(|choice| self.choices[*choice as usize].cost).sum()
    }

    pub(super) fn no_place(&self) -> i128 {
        self.no_place
    }

    /// A buffer that lies nowhere.
    pub(super) fn homeless(&self, choice_of: &[u32]) -> Option<usize> {
        choice_of.iter().position(|choice| self.pieces_of(*choice).next().is_none())
    }

    /// Nothing in limited spaces.
    pub(super) fn nowhere(&self) -> Placing {
        let choice_of: Vec<u32> = (0..self.len()).map(|buffer| self.last_resort(buffer)).collect();
        let cost = self.cost(&choice_of);
        Placing { choice_of, cost, offsets: vec![Vec::new(); self.spaces.all().len()] }
    }
}

/// A way through the spaces: pieces in order of time, and the number of accesses in each space.
struct Path {
    pieces: Vec<(usize, i64, i64)>,
    accesses: Vec<(usize, u64)>,
}

impl Path {
    fn whole(space: usize, lifetime: Lifetime, count: u64) -> Path {
        Path { pieces: vec![(space, lifetime.start, lifetime.end)], accesses: vec![(space, count)] }
    }

    /// At home but for these times between accesses `(from, to)`: leaving in the one and back in the other. Time 0 is
    /// before the first access: there it begins its life away; the last is after the last access: it ends away. `None`
    /// if a move would not leave the place free for a single step.
    fn away(
        home: usize,
        away: usize,
        life: Lifetime,
        times: &[i64],
        trips: &[(usize, usize)],
    ) -> Option<Path> {
        let mut pieces = Vec::with_capacity(trips.len() * 2 + 1);
        let (mut elsewhere, mut moves) = (0, 0);
        // The beginning of the residence at home; `None` while away.
        let mut since = Some(life.start);
        for (from, to) in trips {
            elsewhere += (to - from) as u64;
            let leave = match from.checked_sub(1).map(|last| times[last].checked_add(1)) {
                Some(leave) => Some(leave?),
                None => None,
            };
            let back = match times.get(*to) {
                Some(time) => Some(time.checked_sub(1)?),
                None => None,
            };
            let (begin, end) = (leave.unwrap_or(life.start), back.map_or(life.end, |back| back + 1));
            // Held at home until the copy out is over, and from the copy back in.
            let free = (leave.map_or(life.start, |leave| leave.saturating_add(1)), back.unwrap_or(life.end));
            if free.0 >= free.1 || end > life.end || begin >= end {
                return None;
            }
            // Of accesses at one time, none is before a move and another after it.
            let late = leave.is_some_and(|leave| from < to && leave >= times[*from]);
            let early = back.is_some_and(|back| from < to && back <= times[to - 1]);
            if late || early {
                return None;
            }
            // Nothing accesses the buffer while it is copied.
            let busy = |copy: Option<i64>| copy.is_some_and(|copy| times.binary_search(&copy).is_ok());
            if busy(leave) || busy(back) {
                return None;
            }
            if let Some(leave) = leave {
                pieces.push((home, since?, leave + 1));
                moves += 1;
            }
            pieces.push((away, begin, end));
            since = back;
            moves += u64::from(back.is_some());
        }
        if let Some(since) = since {
            pieces.push((home, since, life.end));
        }
        let count = times.len() as u64;
        let accesses = vec![(home, count - elsewhere + moves), (away, elsewhere + moves)];
        Some(Path { pieces, accesses })
    }
}

/// The ways of a buffer that moves between two spaces.
fn excursions(home: usize, away: usize, life: Lifetime, times: &[i64], paths: &mut Vec<Path>) {
    let last = times.len();
    for from in 0..=last {
        for to in from..=last {
            let edge = from == 0 || to == last || from == to;
            // Being away all the time is no excursion; nor is being away only before or after all accesses: it costs a
            // move.
            if (from, to) != (0, last) && (edge || last <= EVERY_WINDOW) {
                paths.extend(Path::away(home, away, life, times, &[(from, to)]));
            }
        }
    }
    let mut lengths: Vec<i64> = times.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect();
    let between = lengths.clone();
    lengths.sort_unstable();
    lengths.dedup();
    for least in lengths.into_iter().filter(|length| *length > 3) {
        let trips: Vec<(usize, usize)> =
            (1..last).filter(|at| between[at - 1] >= least).map(|at| (at, at)).collect();
        if trips.len() > 1 {
            paths.extend(Path::away(home, away, life, times, &trips));
        }
    }
}
