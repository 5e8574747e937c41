//! The random numbers of Go's `math/rand`, because the seeds of the published experiment mean that generator.
//!
//! The state has 607 words of 64 bits. A draw adds the word at `tap` to the word at `feed`: the additive lagged
//! Fibonacci recurrence x[n] = x[n-607] + x[n-273]. Seeding mixes a linear congruential generator with a table: the
//! state of the same recurrence after 7.8e12 draws. The table is computed here, as x^N modulo x^607 - x^334 - 1.

use std::sync::LazyLock;

const LENGTH: usize = 607;
const TAP: usize = 273;
const MODULUS: u64 = (1 << 31) - 1;
/// The draws after which the table was taken.
const DRAWS: u64 = 7_800_000_000_000;

static TABLE: LazyLock<Vec<u64>> = LazyLock::new(table);

/// A generator with a seed.
#[derive(Clone, Debug)]
pub struct GoRandom {
    words: Vec<u64>,
    tap: usize,
    feed: usize,
}

impl GoRandom {
    pub fn new(seed: i64) -> GoRandom {
        let reduced = seed.rem_euclid(MODULUS as i64) as u64;
        let mut x = if reduced == 0 { 89_482_311 } else { reduced };
        for _ in 0..20 {
            x = step(x);
        }
        let words = TABLE.iter().map(|&mixed| word(&mut x, 40, 20) ^ mixed).collect();
        GoRandom { words, tap: 0, feed: LENGTH - TAP }
    }

    /// 63 random bits.
    pub fn draw(&mut self) -> u64 {
        self.tap = self.tap.checked_sub(1).unwrap_or(LENGTH - 1);
        self.feed = self.feed.checked_sub(1).unwrap_or(LENGTH - 1);
        let sum = self.words[self.feed].wrapping_add(self.words[self.tap]);
        self.words[self.feed] = sum;
        sum & (u64::MAX >> 1)
    }

    /// A number below `n`, which must be from 1 to 2^31 - 1.
    pub fn below(&mut self, n: u32) -> u32 {
        debug_assert!(n > 0 && n < 1 << 31);
        let mut v = (self.draw() >> 32) as u32;
        if n.is_power_of_two() {
            return v & (n - 1);
        }
        let most = (1u32 << 31) - 1 - (1u32 << 31) % n;
        while v > most {
            v = (self.draw() >> 32) as u32;
        }
        v % n
    }

    /// Shuffles as `rand.Shuffle` does.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            let n = i as u32 + 1;
            let mut product = (self.draw() >> 31) * u64::from(n);
            if (product as u32) < n {
                let least = n.wrapping_neg() % n;
                while (product as u32) < least {
                    product = (self.draw() >> 31) * u64::from(n);
                }
            }
            items.swap(i, (product >> 32) as usize);
        }
    }

    /// A permutation as `rand.Perm` gives it.
    pub fn permutation(&mut self, n: usize) -> Vec<u32> {
        let mut m = vec![0; n];
        for i in 0..n {
            let j = self.below(i as u32 + 1) as usize;
            m[i] = m[j];
            m[j] = i as u32;
        }
        m
    }
}

/// One step of the linear congruential generator that fills the state.
fn step(x: u64) -> u64 {
    48_271 * x % MODULUS
}

/// A word from three steps.
fn word(x: &mut u64, high: u32, low: u32) -> u64 {
    *x = step(*x);
    let a = *x << high;
    *x = step(*x);
    let b = *x << low;
    *x = step(*x);
    a ^ b ^ *x
}

fn table() -> Vec<u64> {
    let mut x = 1;
    for _ in 0..20 {
        x = step(x);
    }
    let first: Vec<u64> = (0..LENGTH).map(|_| word(&mut x, 20, 10)).collect();
    // The state as a sequence, oldest first: draw n replaces the word at (333 - n) modulo 607.
    let place = |n: usize| (2 * LENGTH - TAP - 1 - n % LENGTH) % LENGTH;
    let sequence: Vec<u64> = (0..LENGTH).map(|n| first[place(n)]).collect();
    let mut power = power_of_x(DRAWS);
    let mut table = vec![0; LENGTH];
    for i in 0..LENGTH {
        let value =
            power.iter().zip(&sequence).fold(0u64, |sum, (c, s)| sum.wrapping_add(c.wrapping_mul(*s)));
        table[place((DRAWS % LENGTH as u64) as usize + i)] = value;
        times_x(&mut power);
    }
    table
}

/// The coefficients of x^n modulo x^607 - x^334 - 1, over the integers modulo 2^64.
fn power_of_x(n: u64) -> Vec<u64> {
    let mut power = vec![0; LENGTH];
    power[0] = 1;
    for bit in (0..u64::BITS - n.leading_zeros()).rev() {
        power = squared(&power);
        if n >> bit & 1 == 1 {
            times_x(&mut power);
        }
    }
    power
}

fn times_x(power: &mut [u64]) {
    let top = power[LENGTH - 1];
    power.rotate_right(1);
    power[0] = top;
    power[LENGTH - TAP] = power[LENGTH - TAP].wrapping_add(top);
}

fn squared(power: &[u64]) -> Vec<u64> {
    let mut product = vec![0u64; 2 * LENGTH - 1];
    for (i, &a) in power.iter().enumerate() {
        if a != 0 {
            for (sum, &b) in product[i..].iter_mut().zip(power) {
                *sum = sum.wrapping_add(a.wrapping_mul(b));
            }
        }
    }
    for i in (LENGTH..product.len()).rev() {
        let top = product[i];
        product[i - LENGTH] = product[i - LENGTH].wrapping_add(top);
        product[i - TAP] = product[i - TAP].wrapping_add(top);
    }
    product.truncate(LENGTH);
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_and_the_first_draws_are_those_of_go() {
        assert_eq!(TABLE[0] & (u64::MAX >> 1), 5_041_579_894_721_019_882);
        assert_eq!(TABLE[606], 4_152_330_101_494_654_406);
        let mut random = GoRandom::new(42);
        let first = [random.draw(), random.draw(), random.draw()];
        assert_eq!(first, [3_440_579_354_231_278_675, 608_747_136_543_856_411, 5_571_782_338_101_878_760]);
    }

    #[test]
    fn a_permutation_has_every_number_once() {
        let mut all = GoRandom::new(7).permutation(1000);
        all.sort_unstable();
        assert!(all.iter().enumerate().all(|(i, &n)| i as u32 == n));
    }
}
