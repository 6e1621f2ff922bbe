//! Header lines on the wire.

use bytes::{Bytes, BytesMut};
use iop_types::Header;

use crate::v1;

impl From<Header> for v1::Header {
    fn from(header: Header) -> Self {
        Self { name: header.name, value: header.value }
    }
}

impl From<v1::Header> for Header {
    fn from(header: v1::Header) -> Self {
        Self { name: header.name, value: header.value }
    }
}

/// Reads headers that live no longer than the frame's buffer may.
pub(crate) fn borrowed(headers: Vec<v1::Header>) -> Vec<Header> {
    headers.into_iter().map(Header::from).collect()
}

/// Reads headers into one buffer of their own, so that a request that lives for minutes does not pin
/// the read buffer it came in.
pub(crate) fn owned(headers: &[v1::Header]) -> Vec<Header> {
    let total = headers.iter().map(|header| header.name.len() + header.value.len()).sum();
    let mut copied = BytesMut::with_capacity(total);
    for header in headers {
        copied.extend_from_slice(&header.name);
        copied.extend_from_slice(&header.value);
    }
    let mut rest: Bytes = copied.freeze();
    headers
        .iter()
        .map(|header| Header {
            name: rest.split_to(header.name.len()),
            value: rest.split_to(header.value.len()),
        })
        .collect()
}
