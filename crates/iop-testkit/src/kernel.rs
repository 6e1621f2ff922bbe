//! The kernel's own figures about sockets and processes, to hold IOP's counts against.
//!
//! Linux only: everything is read from `/proc`.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The state of a TCP socket, as far as tests tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpState {
    /// Both sides are open.
    Established,
    /// The peer has closed its side, this side has not.
    CloseWait,
    /// Waits for connections.
    Listen,
    /// Any other state of opening or closing.
    Other,
}

/// One TCP socket of this machine. A loopback connection has two of them.
#[derive(Clone, Copy, Debug)]
pub struct TcpSocket {
    /// This end.
    pub local: SocketAddr,
    /// The other end.
    pub remote: SocketAddr,
    /// Its state.
    pub state: TcpState,
    /// Bytes that the peer has not acknowledged.
    pub unsent: u64,
    /// Bytes that the program has not read.
    pub unread: u64,
}

/// Lets this process open as many files as the system allows: a test that holds a thousand calls needs
/// more than the usual 1024.
///
/// # Panics
/// Panics when the kernel refuses what it said it allows.
pub fn allow_many_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    let most = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most })
        .expect("the soft limit may be as high as the hard one");
}

/// All TCP sockets, IPv4 and IPv6.
#[must_use]
pub fn tcp_sockets() -> Vec<TcpSocket> {
    // A kernel without IPv6 has no second table.
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"]
        .map(|path| fs::read_to_string(path).unwrap_or_default());
    let lines = tables.iter().flat_map(|table| table.lines().skip(1));
    let mut sockets: Vec<_> = lines.filter_map(tcp_socket).collect();
    // The kernel hands a table out in parts, and shows a socket again when others came in between.
    sockets.sort_by_key(|socket| (socket.local, socket.remote));
    sockets.dedup_by_key(|socket| (socket.local, socket.remote));
    sockets
}

/// How many established connections lead to this port, counted at the dialling end.
#[must_use]
pub fn connections_to(port: u16) -> usize {
    let established =
        |socket: &TcpSocket| socket.state == TcpState::Established && socket.remote.port() == port;
    tcp_sockets().iter().filter(|socket| established(socket)).count()
}

/// The sockets whose local end is this port and that are not merely listening.
#[must_use]
pub fn accepted_on(port: u16) -> Vec<TcpSocket> {
    let mut sockets = tcp_sockets();
    sockets.retain(|socket| socket.local.port() == port && socket.state != TcpState::Listen);
    sockets
}

/// How many descriptors a process has open.
///
/// # Panics
/// Panics when there is no such process, or it may not be looked into.
#[must_use]
pub fn descriptors(pid: u32) -> usize {
    match fs::read_dir(format!("/proc/{pid}/fd")) {
        Ok(entries) => entries.count(),
        Err(error) => panic!("cannot list the descriptors of process {pid}: {error}"),
    }
}

/// The resident memory of a process in bytes.
///
/// # Panics
/// Panics when there is no such process.
#[must_use]
pub fn resident_bytes(pid: u32) -> u64 {
    status_field(pid, "VmRSS:") * 1024
}

/// The number of threads of a process.
///
/// # Panics
/// Panics when there is no such process.
#[must_use]
pub fn threads(pid: u32) -> u64 {
    status_field(pid, "Threads:")
}

/// The state letter of a process (`R` runs, `S` sleeps, `T` is stopped, `Z` waits to be collected).
#[must_use]
pub fn process_state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before it is in parentheses and may itself hold any of these characters.
    let (_, after_name) = stat.rsplit_once(") ")?;
    after_name.chars().next()
}

fn status_field(pid: u32, name: &str) -> u64 {
    let status = match fs::read_to_string(format!("/proc/{pid}/status")) {
        Ok(status) => status,
        Err(error) => panic!("cannot read the status of process {pid}: {error}"),
    };
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_whitespace().next());
    match number.and_then(|number| number.parse().ok()) {
        Some(number) => number,
        None => panic!("the status of process {pid} has no {name} (it may have ended)"),
    }
}

fn tcp_socket(line: &str) -> Option<TcpSocket> {
    let mut fields = line.split_whitespace().skip(1);
    let local = address(fields.next()?)?;
    let remote = address(fields.next()?)?;
    let state = match fields.next()? {
        "01" => TcpState::Established,
        "08" => TcpState::CloseWait,
        "0A" => TcpState::Listen,
        _ => TcpState::Other,
    };
    let (unsent, unread) = fields.next()?.split_once(':')?;
    let hex = |digits| u64::from_str_radix(digits, 16).ok();
    Some(TcpSocket { local, remote, state, unsent: hex(unsent)?, unread: hex(unread)? })
}

/// Reads `0100007F:1CE8`: the words of the address in the byte order of the machine.
fn address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let words: Option<Vec<[u8; 4]>> = (0..address.len())
        .step_by(8)
        .map(|at| Some(u32::from_str_radix(address.get(at..at + 8)?, 16).ok()?.to_ne_bytes()))
        .collect();
    let bytes = words?.concat();
    let address = match <[u8; 4]>::try_from(bytes.as_slice()) {
        Ok(v4) => IpAddr::V4(Ipv4Addr::from(v4)),
        Err(_) => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes.as_slice()).ok()?)),
    };
    Some(SocketAddr::new(address, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_connection_is_counted_once_at_each_end_and_gone_after_its_reset() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let port = listener.local_addr().expect("address").port();
        let client = TcpStream::connect(("127.0.0.1", port)).expect("connect");
        let (server, _) = listener.accept().expect("accept");
        assert_eq!(connections_to(port), 1);
        assert_eq!(accepted_on(port).len(), 1);
        assert_eq!(accepted_on(port)[0].remote, client.local_addr().expect("address"));

        socket2::SockRef::from(&client)
            .set_linger(Some(std::time::Duration::ZERO))
            .expect("linger");
        drop(client);
        assert_eq!(connections_to(port), 0);
        drop(server);
    }

    #[test]
    fn an_address_of_either_family_is_read() {
        let v6 = "00000000000000000000000001000000:1F90";
        assert_eq!(address("0100007F:1CE8"), Some(SocketAddr::from(([127, 0, 0, 1], 7400))));
        assert_eq!(address(v6), Some(SocketAddr::from((Ipv6Addr::LOCALHOST, 8080))));
        assert_eq!(address("nonsense"), None);
    }

    #[test]
    fn this_process_has_descriptors_memory_and_threads() {
        let me = std::process::id();
        assert!(descriptors(me) >= 3);
        assert!(resident_bytes(me) > 100_000);
        assert!(threads(me) >= 1);
    }
}
