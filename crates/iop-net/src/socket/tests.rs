//! Sockets over the real loopback.

use std::io::ErrorKind;
use std::time::Duration;

use futures_util::poll;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(10), future).await.expect("nothing happened")
}

/// A socket and the plain stream at its other end.
async fn pair() -> (Socket, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    (Socket::from_tcp(near).unwrap(), listener.accept().await.unwrap().0)
}

/// Lets the reactor hear what the kernel knows.
async fn settle() {
    for _ in 0..3 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn the_peers_end_is_noticed_behind_bytes_that_nobody_reads() {
    for (unread, resets) in [(false, false), (true, false), (false, true), (true, true)] {
        let (socket, mut peer) = pair().await;
        let mut closed = socket.closed();
        if unread {
            peer.write_all(b"unread").await.unwrap();
        }
        settle().await;
        assert!(poll!(&mut closed).is_pending());
        if resets {
            peer.set_zero_linger().unwrap();
        }
        drop(peer);
        soon(closed).await;
        // For those who ask later, too.
        soon(socket.closed()).await;
    }
}

#[tokio::test]
async fn a_peer_that_only_ends_its_sending_side_has_ended() {
    let (mut socket, mut peer) = pair().await;
    let closed = socket.closed();
    peer.write_all(b"last words").await.unwrap();
    peer.shutdown().await.unwrap();
    soon(closed).await;
    let mut words = String::new();
    soon(socket.read_to_string(&mut words)).await.unwrap();
    assert_eq!(words, "last words");
    socket.write_all(b"still heard").await.unwrap();
    drop(socket);
    let mut heard = String::new();
    soon(peer.read_to_string(&mut heard)).await.unwrap();
    assert_eq!(heard, "still heard");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn urgent_data_is_not_taken_for_the_peers_end() {
    let (socket, peer) = pair().await;
    let mut closed = socket.closed();
    assert!(poll!(&mut closed).is_pending());
    socket2::SockRef::from(&peer).send_out_of_band(b"!").unwrap();
    settle().await;
    assert!(poll!(&mut closed).is_pending());
    drop(peer);
    soon(closed).await;
}

#[tokio::test]
async fn our_sending_side_ends_alone() {
    let (mut socket, mut peer) = pair().await;
    socket.shutdown_write().unwrap();
    assert_eq!(soon(peer.read(&mut [0])).await.unwrap(), 0);
    peer.write_all(b"answer").await.unwrap();
    drop(peer);
    let mut answer = String::new();
    soon(socket.read_to_string(&mut answer)).await.unwrap();
    assert_eq!(answer, "answer");
}

#[tokio::test]
async fn the_connection_closes_with_the_last_clone_and_resets_if_that_was_asked() {
    let (socket, mut peer) = pair().await;
    let clone = socket.clone();
    drop(socket);
    settle().await;
    assert_eq!(peer.try_read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    drop(clone);
    assert_eq!(soon(peer.read(&mut [0])).await.unwrap(), 0);

    let (socket, mut peer) = pair().await;
    socket.reset_on_close();
    drop(socket);
    let error = soon(peer.read(&mut [0])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn the_kernel_is_asked_whether_something_is_there() {
    let (socket, peer) = pair().await;
    assert!(!socket.is_readable());
    socket2::SockRef::from(&peer).send(b"x").unwrap();
    assert!(socket.is_readable());
    let (socket, peer) = pair().await;
    drop(peer);
    assert!(socket.is_readable());
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn options_reach_the_kernel() {
    let (socket, _peer) = pair().await;
    socket.set_notsent_lowat(16 * 1024).unwrap();
    let stream = socket.as_tcp().unwrap();
    let lowat = socket2::SockRef::from(stream).tcp_notsent_lowat().unwrap();
    assert_eq!((lowat, stream.nodelay().unwrap()), (16 * 1024, true));
}

#[tokio::test]
async fn bytes_cross_unchanged_in_both_directions_whatever_the_sizes() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let (socket, peer) = pair().await;
    let peer = Socket::from_tcp(peer).unwrap();
    let sides = [(socket.clone(), peer.clone()), (peer, socket)].map(|(mut from, mut to)| {
        let mut sent = vec![0; 4 << 20];
        random.fill(&mut sent);
        let expected = sent.clone();
        let (mut writes, mut reads) = (random.fork(), random.fork());
        let writing = tokio::spawn(async move {
            let mut rest = &sent[..];
            while !rest.is_empty() {
                let first = writes.usize(1..=100_000).min(rest.len());
                let second = writes.usize(0..=100_000).min(rest.len() - first);
                let slices = [&rest[..first], &rest[first..first + second]].map(IoSlice::new);
                let written = from.write_vectored(&slices).await.unwrap();
                rest = &rest[written..];
            }
        });
        let reading = tokio::spawn(async move {
            let mut received = Vec::new();
            while received.len() < expected.len() {
                let mut buf = vec![0; reads.usize(1..=100_000)];
                let n = to.read(&mut buf).await.unwrap();
                received.extend_from_slice(&buf[..n]);
            }
            assert!(received == expected);
        });
        [writing, reading]
    });
    for task in sides.into_iter().flatten() {
        soon(task).await.unwrap();
    }
}
