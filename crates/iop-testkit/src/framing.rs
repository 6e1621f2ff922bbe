//! Body framing of HTTP/1.1, read from a growing buffer. Used by both ends of the kit.

use bytes::{Bytes, BytesMut};

/// How a body is delimited, and how much of it is still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// `content-length`: this many bytes are missing.
    Sized(u64),
    /// `transfer-encoding: chunked`.
    Chunked(Chunk),
    /// Up to the end of the connection.
    ToEnd,
    /// Nothing more comes.
    Done,
}

/// Where in a chunked body the reader stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chunk {
    /// Before a line with a size.
    Size,
    /// Inside a chunk of which this many bytes are missing.
    Payload(u64),
    /// Before the line end that closes a chunk.
    LineEnd,
    /// Among the trailers.
    Trailers,
}

/// A body that breaks its own framing.
#[derive(Debug)]
pub(crate) struct Malformed(pub(crate) String);

impl Framing {
    /// Reads the framing from headers; `otherwise` is meant where they name none.
    pub(crate) fn of(headers: &[(String, String)], otherwise: Self) -> Result<Self, Malformed> {
        let value = |name: &str| {
            headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.trim())
        };
        if let Some(encoding) = value("transfer-encoding") {
            return if encoding.eq_ignore_ascii_case("chunked") {
                Ok(Self::Chunked(Chunk::Size))
            } else {
                Err(Malformed(format!("transfer-encoding {encoding}")))
            };
        }
        match value("content-length").map(str::parse) {
            None => Ok(otherwise),
            Some(Ok(0)) => Ok(Self::Done),
            Some(Ok(length)) => Ok(Self::Sized(length)),
            Some(Err(error)) => Err(Malformed(format!("content-length: {error}"))),
        }
    }

    /// Takes the next piece of the body out of `buffer`; `None` means that more bytes are needed,
    /// or none where [`Framing::Done`] is reached.
    pub(crate) fn take(&mut self, buffer: &mut BytesMut) -> Result<Option<Bytes>, Malformed> {
        loop {
            match self {
                Self::Done => return Ok(None),
                Self::ToEnd => {
                    return Ok((!buffer.is_empty()).then(|| buffer.split().freeze()));
                }
                Self::Sized(missing) => {
                    let piece = take_up_to(buffer, missing);
                    if *missing == 0 {
                        *self = Self::Done;
                    }
                    return Ok(piece);
                }
                Self::Chunked(Chunk::Size) => {
                    let Some(line) = take_line(buffer) else { return Ok(None) };
                    let digits = line.split(';').next().unwrap_or_default().trim();
                    let size = u64::from_str_radix(digits, 16)
                        .map_err(|error| Malformed(format!("chunk size `{line}`: {error}")))?;
                    *self = Self::Chunked(match size {
                        0 => Chunk::Trailers,
                        size => Chunk::Payload(size),
                    });
                }
                Self::Chunked(Chunk::Payload(missing)) => {
                    let piece = take_up_to(buffer, missing);
                    if *missing == 0 {
                        *self = Self::Chunked(Chunk::LineEnd);
                    }
                    return Ok(piece);
                }
                Self::Chunked(Chunk::LineEnd) => {
                    let Some(line) = take_line(buffer) else { return Ok(None) };
                    if !line.is_empty() {
                        return Err(Malformed(format!("`{line}` after a chunk")));
                    }
                    *self = Self::Chunked(Chunk::Size);
                }
                Self::Chunked(Chunk::Trailers) => {
                    let Some(line) = take_line(buffer) else { return Ok(None) };
                    if line.is_empty() {
                        *self = Self::Done;
                    }
                }
            }
        }
    }
}

fn take_up_to(buffer: &mut BytesMut, missing: &mut u64) -> Option<Bytes> {
    let length = usize::try_from(*missing).unwrap_or(usize::MAX).min(buffer.len());
    *missing -= length as u64;
    (length > 0).then(|| buffer.split_to(length).freeze())
}

fn take_line(buffer: &mut BytesMut) -> Option<String> {
    let end = buffer.windows(2).position(|pair| pair == b"\r\n")?;
    let line = buffer.split_to(end + 2);
    Some(String::from_utf8_lossy(&line[..end]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunked_body_is_the_same_for_every_segmentation() {
        let wire = b"3\r\nabc\r\n0A;x=y\r\n0123456789\r\n0\r\nx-sum: 1\r\n\r\nnext";
        for size in 1..wire.len() {
            let mut framing = Framing::Chunked(Chunk::Size);
            let (mut buffer, mut body) = (BytesMut::new(), Vec::new());
            for segment in wire.chunks(size) {
                buffer.extend_from_slice(segment);
                while let Some(piece) = framing.take(&mut buffer).expect("well-formed") {
                    body.extend_from_slice(&piece);
                }
            }
            assert_eq!(framing, Framing::Done, "segments of {size}");
            assert_eq!((&body[..], &buffer[..]), (&b"abc0123456789"[..], &b"next"[..]));
        }
    }

    #[test]
    fn a_wrong_chunk_size_is_malformed() {
        let mut framing = Framing::Chunked(Chunk::Size);
        assert!(framing.take(&mut BytesMut::from("zz\r\n")).is_err());
    }
}
