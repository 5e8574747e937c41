//! The bytes of a statistics file. Little-endian, without alignment; `text` is a u16 and that many bytes of UTF-8,
//! `option` a u8 and, if that is 1, its value.
//!
//! ```text
//!      0  "GAPLPAGE"
//!      8  u32 version              12  u32 length of the body
//!     16  u64 sequence, one more with each writing
//!     24  body:
//!           u32 pid, u64 start, u64 namespace, u64 began, text command, text program,
//!           option (text name, option u64 limit) tenant, u64 time, u8 cards, then each card:
//!             u32 index, option 16 bytes uuid, text name, u64 total, free, option u64 limit,
//!             u64 live, peak_live, requested, active, reserved, peak_reserved, stranded, blocks, u64 for each counter,
//!             u16 lanes, u32 more, each u64 stream, pool a, pool b, blocks, live, reserved,
//!             u16 holders, each text what, u64 bytes, blocks,
//!             u16 regions, each text name, text keep, u64 live, held, asleep, host,
//!             u16 samples, each u64 time, live, reserved, allocations
//!     24 + length  u64 sequence again, u64 checksum of sequence, length and body (FNV-1a)
//! ```
//!
//! A statistics file is written in one call and read in one. If the two sequences differ or the checksum is wrong, the
//! reader met a write and reads again. Counts and texts have upper bounds, so a statistics file has one too. A body
//! that goes on after its last card is damaged.

use crate::error::StatisticsError;
use crate::process::Process;
use crate::statistics::{Card, Counters, Holder, Lane, Region, Sample, Statistics, Tenant};

pub const MAGIC: [u8; 8] = *b"GAPLPAGE";
pub const VERSION: u32 = 2;

/// The highest number of each in a statistics file.
pub const CARDS: usize = 64;
pub const LANES: usize = 32;
pub const HOLDERS: usize = 16;
pub const REGIONS: usize = 32;
pub const SAMPLES: usize = 240;
/// Bytes of a command line, and of any other text.
pub const COMMAND: usize = 512;
pub const TEXT: usize = 120;
/// Bytes of the word for what a region keeps.
const KEEP: usize = 16;

const HEADER: usize = 24;
const FOOTER: usize = 16;
/// An upper bound for a statistics file.
pub const LARGEST: usize = HEADER
    + FOOTER
    + 2048
    + CARDS * (512 + 2 * TEXT + LANES * 48 + HOLDERS * (24 + TEXT) + REGIONS * REGION + SAMPLES * 32);
/// The bytes of one region.
const REGION: usize = 36 + TEXT + KEEP;

/// A statistics file in bytes. Lists and texts that are too long lose their end.
#[must_use]
pub fn encode(statistics: &Statistics, sequence: u64) -> Vec<u8> {
    let mut body = Put(Vec::with_capacity(16 << 10));
    put_statistics(&mut body, statistics);
    seal(&body.0, sequence)
}

/// A body with its header and footer.
#[must_use]
pub fn seal(body: &[u8], sequence: u64) -> Vec<u8> {
    let mut out = Put(Vec::with_capacity(HEADER + body.len() + FOOTER));
    out.0.extend(MAGIC);
    out.u32(VERSION);
    out.u32(body.len() as u32);
    out.u64(sequence);
    out.0.extend(body);
    out.u64(sequence);
    out.u64(checksum(sequence, body));
    out.0
}

/// The length of the body of a file that begins with `magic`, and the bytes behind that length.
pub(crate) fn begin<'b>(
    bytes: &'b [u8],
    magic: &[u8],
    known: u32,
) -> Result<(Take<'b>, usize), StatisticsError> {
    // The file has just been made.
    if bytes.is_empty() {
        return Err(StatisticsError::Torn);
    }
    let mut head = Take(bytes);
    if head.bytes(magic.len()).is_none_or(|found| found != magic) {
        return Err(StatisticsError::NotStatistics);
    }
    let found = head.u32().ok_or(StatisticsError::Torn)?;
    if found != known {
        return Err(StatisticsError::Version { found, known });
    }
    let length = head.u32().ok_or(StatisticsError::Torn)? as usize;
    Ok((head, length))
}

/// A statistics file from bytes that any program may have written. Bytes after it are ignored.
///
/// # Errors
/// [`StatisticsError::Torn`] if the reader should read again; otherwise the error in the bytes.
pub fn decode(bytes: &[u8]) -> Result<Statistics, StatisticsError> {
    let (mut head, length) = begin(bytes, &MAGIC, VERSION)?;
    let sequence = head.u64().ok_or(StatisticsError::Torn)?;
    if length > LARGEST {
        return Err(StatisticsError::Wrong("its length"));
    }
    let body = head.bytes(length).ok_or(StatisticsError::Torn)?;
    let again = head.u64().ok_or(StatisticsError::Torn)?;
    let sum = head.u64().ok_or(StatisticsError::Torn)?;
    if again != sequence || sum != checksum(sequence, body) {
        return Err(StatisticsError::Torn);
    }
    let mut body = Take(body);
    let statistics = take_statistics(&mut body)?;
    if !body.0.is_empty() {
        return Err(StatisticsError::Wrong("it goes on after its end"));
    }
    Ok(statistics)
}

/// FNV-1a.
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

fn checksum(sequence: u64, body: &[u8]) -> u64 {
    let head = sequence.to_le_bytes().into_iter().chain((body.len() as u64).to_le_bytes());
    head.chain(body.iter().copied())
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

// ---- writing ----

pub(crate) struct Put(pub(crate) Vec<u8>);

impl Put {
    fn u16(&mut self, value: u16) {
        self.0.extend(value.to_le_bytes());
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    pub(crate) fn text(&mut self, text: &str, most: usize) {
        let mut end = text.len().min(most);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.u16(end as u16);
        self.0.extend(&text.as_bytes()[..end]);
    }

    fn option<T>(&mut self, value: Option<T>, put: impl FnOnce(&mut Put, T)) {
        self.0.push(u8::from(value.is_some()));
        if let Some(value) = value {
            put(self, value);
        }
    }

    fn list<T>(&mut self, list: &[T], most: usize, mut put: impl FnMut(&mut Put, &T)) {
        let list = &list[..list.len().min(most)];
        self.u16(list.len() as u16);
        for item in list {
            put(self, item);
        }
    }
}

fn put_statistics(out: &mut Put, statistics: &Statistics) {
    let Process { pid, start, namespace, began, command, program } = &statistics.process;
    out.u32(*pid);
    out.u64(*start);
    out.u64(*namespace);
    out.u64(*began);
    out.text(command, COMMAND);
    out.text(program, TEXT);
    out.option(statistics.tenant.as_ref(), |out, tenant| {
        out.text(&tenant.name, TEXT);
        out.option(tenant.limit, Put::u64);
    });
    out.u64(statistics.time);
    let cards = &statistics.cards[..statistics.cards.len().min(CARDS)];
    out.0.push(cards.len() as u8);
    for card in cards {
        put_card(out, card);
    }
}

fn put_card(out: &mut Put, card: &Card) {
    out.u32(card.index);
    out.option(card.uuid, |out, uuid| out.0.extend(uuid));
    out.text(&card.name, TEXT);
    out.u64(card.total);
    out.u64(card.free);
    out.option(card.limit, Put::u64);
    for value in [
        card.live,
        card.peak_live,
        card.requested,
        card.active,
        card.reserved,
        card.peak_reserved,
        card.stranded,
        card.blocks,
    ] {
        out.u64(value);
    }
    let c = &card.counters;
    for value in [
        c.allocations,
        c.frees,
        c.ooms,
        c.retries,
        c.creates,
        c.maps,
        c.device_allocs,
        c.device_frees,
        c.harvested,
        c.host_waits,
        c.driver_ns,
    ] {
        out.u64(value);
    }
    let left_out = card.lanes.len().saturating_sub(LANES) as u32;
    out.list(&card.lanes, LANES, |_, _| ());
    out.u32(card.more_lanes.saturating_add(left_out));
    for lane in card.lanes.iter().take(LANES) {
        for value in [lane.stream, lane.pool.0, lane.pool.1, lane.blocks, lane.live, lane.reserved] {
            out.u64(value);
        }
    }
    out.list(&card.holders, HOLDERS, |out, holder| {
        out.text(&holder.what, TEXT);
        out.u64(holder.bytes);
        out.u64(holder.blocks);
    });
    out.list(&card.regions, REGIONS, |out, region| {
        out.text(&region.name, TEXT);
        out.text(&region.keep, KEEP);
        for value in [region.live, region.held, region.asleep, region.host] {
            out.u64(value);
        }
    });
    // The newest samples matter most.
    let samples = &card.samples[card.samples.len().saturating_sub(SAMPLES)..];
    out.list(samples, SAMPLES, |out, sample| {
        for value in [sample.time, sample.live, sample.reserved, sample.allocations] {
            out.u64(value);
        }
    });
}

// ---- reading ----

pub(crate) struct Take<'a>(pub(crate) &'a [u8]);

const SHORT: StatisticsError = StatisticsError::Wrong("it ends too early");

impl<'a> Take<'a> {
    pub(crate) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn number(&mut self) -> Result<u64, StatisticsError> {
        self.u64().ok_or(SHORT)
    }

    /// Text that can be shown: characters that would control a terminal become question marks.
    pub(crate) fn text(&mut self, most: usize) -> Result<String, StatisticsError> {
        let length = usize::from(self.u16().ok_or(SHORT)?);
        if length > most {
            return Err(StatisticsError::Wrong("a text is too long"));
        }
        let bytes = self.bytes(length).ok_or(SHORT)?;
        let shown = |c: char| if c.is_control() || is_format(c) { '?' } else { c };
        Ok(String::from_utf8_lossy(bytes).chars().map(shown).collect())
    }

    fn option<T>(
        &mut self,
        take: impl FnOnce(&mut Self) -> Result<T, StatisticsError>,
    ) -> Result<Option<T>, StatisticsError> {
        match self.u8().ok_or(SHORT)? {
            0 => Ok(None),
            1 => take(self).map(Some),
            _ => Err(StatisticsError::Wrong("a mark is neither 0 nor 1")),
        }
    }

    fn count(&mut self, most: usize) -> Result<usize, StatisticsError> {
        let count = usize::from(self.u16().ok_or(SHORT)?);
        if count > most { Err(StatisticsError::Wrong("a list is too long")) } else { Ok(count) }
    }
}

/// Characters that turn text around, so that one name could look like another.
fn is_format(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

fn take_statistics(take: &mut Take<'_>) -> Result<Statistics, StatisticsError> {
    let process = Process {
        pid: take.u32().ok_or(SHORT)?,
        start: take.number()?,
        namespace: take.number()?,
        began: take.number()?,
        command: take.text(COMMAND)?,
        program: take.text(TEXT)?,
    };
    let tenant = take.option(|take| {
        let name = take.text(TEXT)?;
        let limit = take.option(Take::number)?;
        Ok(Tenant { name, limit })
    })?;
    let time = take.number()?;
    let count = usize::from(take.u8().ok_or(SHORT)?);
    if count > CARDS {
        return Err(StatisticsError::Wrong("it has too many cards"));
    }
    let cards = (0..count).map(|_| take_card(take)).collect::<Result<_, _>>()?;
    Ok(Statistics { process, tenant, time, cards })
}

fn take_card(take: &mut Take<'_>) -> Result<Card, StatisticsError> {
    let mut card = Card {
        index: take.u32().ok_or(SHORT)?,
        uuid: take.option(|take| take.array().ok_or(SHORT))?,
        name: take.text(TEXT)?,
        total: take.number()?,
        free: take.number()?,
        limit: take.option(Take::number)?,
        live: take.number()?,
        peak_live: take.number()?,
        requested: take.number()?,
        active: take.number()?,
        reserved: take.number()?,
        peak_reserved: take.number()?,
        stranded: take.number()?,
        blocks: take.number()?,
        counters: Counters {
            allocations: take.number()?,
            frees: take.number()?,
            ooms: take.number()?,
            retries: take.number()?,
            creates: take.number()?,
            maps: take.number()?,
            device_allocs: take.number()?,
            device_frees: take.number()?,
            harvested: take.number()?,
            host_waits: take.number()?,
            driver_ns: take.number()?,
        },
        ..Card::default()
    };
    let lanes = take.count(LANES)?;
    card.more_lanes = take.u32().ok_or(SHORT)?;
    for _ in 0..lanes {
        card.lanes.push(Lane {
            stream: take.number()?,
            pool: (take.number()?, take.number()?),
            blocks: take.number()?,
            live: take.number()?,
            reserved: take.number()?,
        });
    }
    for _ in 0..take.count(HOLDERS)? {
        card.holders.push(Holder { what: take.text(TEXT)?, bytes: take.number()?, blocks: take.number()? });
    }
    for _ in 0..take.count(REGIONS)? {
        card.regions.push(Region {
            name: take.text(TEXT)?,
            keep: take.text(KEEP)?,
            live: take.number()?,
            held: take.number()?,
            asleep: take.number()?,
            host: take.number()?,
        });
    }
    for _ in 0..take.count(SAMPLES)? {
        card.samples.push(Sample {
            time: take.number()?,
            live: take.number()?,
            reserved: take.number()?,
            allocations: take.number()?,
        });
    }
    Ok(card)
}
