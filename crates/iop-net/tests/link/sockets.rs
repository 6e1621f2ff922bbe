//! What the kernel knows of a link's sockets.

use std::time::Duration;

use socket2::SockRef;

use crate::support::{Edge, Node, echo};

#[cfg(target_os = "linux")]
#[tokio::test]
async fn both_ends_keep_little_unsent_send_at_once_and_notice_a_silent_peer() {
    let mut edge = Edge::start().await;
    let node = Node::start(edge.address, echo());
    edge.ready().await;
    let streams = [edge.net.streams(), node.net.streams()].concat();
    assert_eq!(streams.len(), 2, "the accepted and the dialled end");
    for stream in streams {
        let socket = SockRef::from(&*stream);
        assert_eq!(socket.tcp_notsent_lowat().unwrap(), 16 * 1024);
        assert!(socket.tcp_nodelay().unwrap());
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(Duration::from_secs(45)));
    }
}
