//! Connections that are served at once. If there are too many, one that waits for its client ends: the oldest of the
//! address that has the most. So no client keeps the others out by holding connections.

use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The connections of a port.
#[derive(Debug)]
pub struct Crowd {
    most: usize,
    /// The oldest first.
    now: Mutex<(u64, Vec<One>)>,
}

#[derive(Debug)]
struct One {
    number: u64,
    from: IpAddr,
    socket: TcpStream,
    /// True while its request is carried out. It is not ended then, so that the work at once is limited too.
    is_busy: bool,
}

/// The place of a connection.
#[derive(Debug)]
pub struct Place<'a> {
    crowd: &'a Crowd,
    number: u64,
}

impl Crowd {
    #[must_use]
    pub const fn new(most: usize) -> Crowd {
        Crowd { most, now: Mutex::new((0, Vec::new())) }
    }

    fn now(&self) -> MutexGuard<'_, (u64, Vec<One>)> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a connection, which may end another one; `None` if all are busy.
    pub fn admit(&self, stream: &TcpStream) -> Option<Place<'_>> {
        self.admit_from(stream.peer_addr().ok()?.ip(), stream)
    }

    fn admit_from(&self, from: IpAddr, stream: &TcpStream) -> Option<Place<'_>> {
        let socket = stream.try_clone().ok()?;
        let (last, all) = &mut *self.now();
        if all.len() >= self.most {
            let of = |one: &One| all.iter().filter(|other| other.from == one.from).count();
            let waiting = all.iter().enumerate().filter(|(_, one)| !one.is_busy);
            let (at, _) = waiting.rev().max_by_key(|(_, one)| of(one))?;
            let _ = all.remove(at).socket.shutdown(Shutdown::Both);
        }
        *last += 1;
        all.push(One { number: *last, from, socket, is_busy: false });
        Some(Place { crowd: self, number: *last })
    }
}

impl Place<'_> {
    /// Carries out a request. The connection does not end meanwhile.
    pub fn busy<T>(&self, work: impl FnOnce() -> T) -> T {
        self.set_busy(true);
        let result = work();
        self.set_busy(false);
        result
    }

    fn set_busy(&self, is_busy: bool) {
        if let Some(one) = self.crowd.now().1.iter_mut().find(|one| one.number == self.number) {
            one.is_busy = is_busy;
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.crowd.now().1.retain(|one| one.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::TcpListener;

    /// A client's end of a connection, and its place if it came from this address.
    fn enter<'a>(listener: &TcpListener, crowd: &'a Crowd, from: &str) -> (TcpStream, Option<Place<'a>>) {
        let client = TcpStream::connect(listener.local_addr().expect("an address")).expect("it listens");
        let (ours, _) = listener.accept().expect("a connection");
        (client, crowd.admit_from(from.parse().expect("an address"), &ours))
    }

    fn has_ended(client: &mut TcpStream) -> bool {
        client.set_nonblocking(true).expect("a socket");
        matches!(client.read(&mut [0]), Ok(0))
    }

    #[test]
    fn the_oldest_that_waits_of_the_address_with_the_most_ends() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let crowd = Crowd::new(4);
        let next = |from: &str| enter(&listener, &crowd, from);
        let (mut clients, mut places): (Vec<_>, Vec<_>) =
            ["10.0.0.1", "10.0.0.2", "10.0.0.2", "10.0.0.2"].map(next).into_iter().unzip();
        assert!(places.iter().all(Option::is_some));
        let mut ended = || clients.iter_mut().map(has_ended).collect::<Vec<bool>>();
        let _third = next("10.0.0.1");
        assert_eq!(ended(), [false, true, false, false]);
        // Both addresses have two now; the oldest of all is busy.
        places[0].as_ref().expect("a place").busy(|| {
            assert!(next("10.0.0.3").1.is_some());
            assert_eq!(ended(), [false, true, true, false]);
        });
        places.clear();
        assert_eq!(crowd.now().1.len(), 1, "places that were given up count for nothing");
        let more: Vec<_> = (0..4).map(|_| next("10.0.0.4")).collect();
        assert!(more.iter().all(|(_, place)| place.is_some()));
    }

    #[test]
    fn if_all_are_busy_there_is_no_place() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let crowd = Crowd::new(1);
        let (_client, place) = enter(&listener, &crowd, "10.0.0.1");
        let place = place.expect("there is room");
        place.busy(|| assert!(enter(&listener, &crowd, "10.0.0.2").1.is_none()));
        assert!(enter(&listener, &crowd, "10.0.0.2").1.is_some());
    }
}
