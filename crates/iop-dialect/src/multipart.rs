//! Finds the `model` field of a form (`multipart/form-data`, RFC 7578) while the form passes by.
//!
//! A form carries audio and images of many megabytes, so it is never held: every byte goes out as it
//! came in, in pieces, and only the value of the `model` field is told apart ([`Piece::Model`]), so
//! that the reader may put another name in its place. What may have to wait is bounded: part headers
//! by [`MAX_HEADERS`], the name by [`MAX_MODEL`], and within a file only a tail that could be the
//! beginning of a boundary.
//!
//! ```text
//! preamble ─ boundary ─► headers ─► file or other field ─ boundary ─► headers …
//!                           └─────► model: collected    ─ boundary ─┘        └─ "--" ─► epilogue
//! ```
//!
//! Two `model` fields, or one that is a file, are refused: servers disagree about which one counts.
//! So are part headers in which one server could see a `model` that another does not: whoever routes
//! by one name must not pass on another.

use bytes::{Bytes, BytesMut};
use memchr::memmem;

/// Longest headers of one part.
pub const MAX_HEADERS: usize = 8 * 1024;
/// Longest name of a model.
pub const MAX_MODEL: usize = 512;
/// RFC 2046, section 5.1.1.
const MAX_BOUNDARY: usize = 70;

/// A piece of a form, in order; all pieces together are the form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Passes as it is.
    Bytes(Bytes),
    /// The value of the `model` field.
    Model(Bytes),
}

/// A form that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FormError {
    /// The content type says form and names no boundary, or one that cannot be.
    #[error("`content-type` names no usable `boundary`: let the client library write it")]
    Boundary,
    /// A part has too many headers to be one.
    #[error("the headers of a part are longer than {MAX_HEADERS} bytes")]
    Headers,
    /// The form ended within a part.
    #[error("the form ends before its last boundary: send it whole")]
    Unfinished,
    /// What follows a boundary is neither a part nor the end.
    #[error("a boundary is followed by neither a part nor the end of the form")]
    Delimiter,
    /// Two readers could give a part two names.
    #[error(
        "the `content-disposition` of a part can be read in two ways: send it once, with one quoted \
         `name`"
    )]
    Disposition,
    /// The name is too long, or no text.
    #[error("form field `model` is no name of a model: send 1 to {MAX_MODEL} bytes of text")]
    Model,
    /// It is not the model that the request went to.
    #[error(
        "form field `model` comes late and names another model than the request went to: send it \
         before the file, or name it in header `x-iop-model`"
    )]
    OtherModel,
    /// It came twice.
    #[error("form field `model` appears more than once: send it once")]
    Twice,
}

/// Reads the boundary off a content type; `None` where it is no form.
///
/// # Errors
/// It is a form without a usable boundary.
pub fn boundary(content_type: &str) -> Option<Result<String, FormError>> {
    let (essence, parameters) = content_type.split_once(';').unwrap_or((content_type, ""));
    if !essence.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    let found = the_parameter(parameters, "boundary").ok().flatten().filter(|text| {
        (1..=MAX_BOUNDARY).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ')
            && !text.ends_with(' ')
    });
    Some(found.ok_or(FormError::Boundary))
}

/// Reads one form as it arrives.
#[derive(Debug)]
pub struct FormScan {
    /// CRLF, two dashes, boundary.
    delimiter: Vec<u8>,
    state: State,
    /// What arrived and could not be judged yet.
    kept: BytesMut,
    has_model: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before the first boundary, which may be the very first bytes.
    Preamble {
        at_start: bool,
    },
    /// Right behind a boundary.
    Delimiter,
    Headers,
    /// In a part that passes.
    Part,
    Model,
    Epilogue,
}

impl FormScan {
    /// Reads a form whose parts are separated by `boundary`.
    pub fn new(boundary: &str) -> Self {
        Self {
            delimiter: format!("\r\n--{boundary}").into_bytes(),
            state: State::Preamble { at_start: true },
            kept: BytesMut::new(),
            has_model: false,
        }
    }

    /// Takes the next bytes of the form; what is known of them goes to `out`.
    ///
    /// # Errors
    /// The form cannot be read; nothing may be pushed any more.
    pub fn push(&mut self, data: Bytes, mut out: impl FnMut(Piece)) -> Result<(), FormError> {
        // Files pass by reference: mostly nothing was kept and nothing has to be.
        let mut data = if self.kept.is_empty() {
            data
        } else {
            self.kept.extend_from_slice(&data);
            self.kept.split().freeze()
        };
        while let Some(taken) = self.step(&data)? {
            let piece = data.split_to(taken.bytes);
            match taken.is_model {
                true => out(Piece::Model(piece)),
                false if piece.is_empty() => {}
                false => out(Piece::Bytes(piece)),
            }
        }
        self.kept.extend_from_slice(&data);
        Ok(())
    }

    /// The form is over.
    ///
    /// # Errors
    /// It ended within a part.
    pub fn finish(&self) -> Result<(), FormError> {
        match self.state {
            State::Epilogue => Ok(()),
            State::Preamble { .. }
            | State::Delimiter
            | State::Headers
            | State::Part
            | State::Model => Err(FormError::Unfinished),
        }
    }

    /// Judges the beginning of `data`; `None` when that takes more bytes.
    fn step(&mut self, data: &[u8]) -> Result<Option<Taken>, FormError> {
        if data.is_empty() {
            return Ok(None);
        }
        match self.state {
            State::Preamble { at_start: true } => {
                let first = &self.delimiter[2..];
                if data.starts_with(first) {
                    let bytes = first.len();
                    return Ok(Some(self.enter(State::Delimiter, bytes)));
                }
                if first.starts_with(data) {
                    return Ok(None);
                }
                Ok(Some(self.enter(State::Preamble { at_start: false }, 0)))
            }
            State::Preamble { at_start: false } | State::Part => Ok(self.pass(data)),
            State::Delimiter => self.read_delimiter(data),
            State::Headers => self.read_headers(data),
            State::Model => self.read_model(data),
            State::Epilogue => Ok(Some(Taken { bytes: data.len(), is_model: false })),
        }
    }

    /// Lets everything pass up to the next boundary, and the boundary.
    fn pass(&mut self, data: &[u8]) -> Option<Taken> {
        if let Some(at) = memmem::find(data, &self.delimiter) {
            let bytes = at + self.delimiter.len();
            return Some(self.enter(State::Delimiter, bytes));
        }
        let bytes = data.len() - self.possible_tail(data);
        (bytes > 0).then_some(Taken { bytes, is_model: false })
    }

    /// Behind a boundary come two dashes, which end the form, or white space and a line end.
    fn read_delimiter(&mut self, data: &[u8]) -> Result<Option<Taken>, FormError> {
        if data.starts_with(b"--") {
            return Ok(Some(self.enter(State::Epilogue, 2)));
        }
        let padding = data.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        match &data[padding..] {
            // The line end stays: it may begin the blank line of a part without headers.
            [b'\r', b'\n', ..] => Ok(Some(self.enter(State::Headers, padding))),
            [] | [b'\r' | b'-'] if padding <= MAX_BOUNDARY => Ok(None),
            _ => Err(FormError::Delimiter),
        }
    }

    fn read_headers(&mut self, data: &[u8]) -> Result<Option<Taken>, FormError> {
        let Some(end) = memmem::find(data, b"\r\n\r\n") else {
            return if data.len() > MAX_HEADERS { Err(FormError::Headers) } else { Ok(None) };
        };
        if end > MAX_HEADERS {
            return Err(FormError::Headers);
        }
        let is_model = names_model(&data[..end])?;
        if is_model && std::mem::replace(&mut self.has_model, true) {
            return Err(FormError::Twice);
        }
        // An empty value is followed by its boundary at once, which may share this line end with
        // nothing: the blank line is the part's own.
        let state = if is_model { State::Model } else { State::Part };
        Ok(Some(self.enter(state, end + 4)))
    }

    fn read_model(&mut self, data: &[u8]) -> Result<Option<Taken>, FormError> {
        match memmem::find(data, &self.delimiter) {
            Some(bytes @ 1..=MAX_MODEL) => {
                // What follows is found again as the boundary that it is.
                self.state = State::Part;
                std::str::from_utf8(&data[..bytes]).map_err(|_| FormError::Model)?;
                Ok(Some(Taken { bytes, is_model: true }))
            }
            Some(_) => Err(FormError::Model),
            None if data.len() > MAX_MODEL + self.delimiter.len() => Err(FormError::Model),
            None => Ok(None),
        }
    }

    fn enter(&mut self, state: State, bytes: usize) -> Taken {
        self.state = state;
        Taken { bytes, is_model: false }
    }

    /// Counts the last bytes that may be the beginning of a boundary.
    fn possible_tail(&self, data: &[u8]) -> usize {
        let longest = data.len().min(self.delimiter.len() - 1);
        let tail = &data[data.len() - longest..];
        memchr::memchr_iter(b'\r', tail)
            .map(|at| &tail[at..])
            .find(|tail| self.delimiter.starts_with(tail))
            .map_or(0, <[u8]>::len)
    }
}

/// What is known of the beginning of the data.
struct Taken {
    bytes: usize,
    is_model: bool,
}

/// Says whether these part headers are those of the `model` field.
fn names_model(headers: &[u8]) -> Result<bool, FormError> {
    // A name that is no UTF-8 must not hide the parameter beside it, nor a folded line.
    let headers = String::from_utf8_lossy(headers);
    let headers = headers.replace("\n ", " ").replace("\n\t", " ");
    let mut named = None;
    for line in headers.lines() {
        let Some((name, value)) = line.trim().split_once(':') else { continue };
        if !name.trim_end().eq_ignore_ascii_case("content-disposition") {
            continue;
        }
        let (_, rest) = value.split_once(';').unwrap_or((value, ""));
        let name = the_parameter(rest, "name").map_err(|Ambiguous| FormError::Disposition)?;
        let is_file = parameters(rest).flatten().any(|(name, _)| is_spelling(&name, "filename"));
        if named.replace((name, is_file)).is_some() {
            return Err(FormError::Disposition);
        }
    }
    match named {
        Some((Some(name), true)) if name == "model" => Err(FormError::Model),
        Some((Some(name), false)) if name == "model" => Ok(true),
        Some(_) | None => Ok(false),
    }
}

/// Parameters that some reader could take for others.
#[derive(Debug, PartialEq, Eq)]
struct Ambiguous;

/// Finds the one parameter of this name. Readers disagree about which of two counts, about the
/// extended spellings of RFC 2231, and about everything behind a broken quote.
fn the_parameter(text: &str, wanted: &str) -> Result<Option<String>, Ambiguous> {
    let mut found = None;
    for parameter in parameters(text) {
        let (name, value) = parameter?;
        if !is_spelling(&name, wanted) {
            continue;
        }
        if name.contains('*') || found.replace(value).is_some() {
            return Err(Ambiguous);
        }
    }
    Ok(found)
}

/// Says whether this is the wanted parameter, or an extended spelling of it (`name*`, `name*0`).
fn is_spelling(name: &str, wanted: &str) -> bool {
    name.split('*').next().is_some_and(|name| name.trim_end().eq_ignore_ascii_case(wanted))
}

/// Reads the parameters of a header's value, quoted or not; the last item may be an error.
fn parameters(text: &str) -> impl Iterator<Item = Result<(String, String), Ambiguous>> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        loop {
            let text = rest.take()?.trim_start_matches([';', ' ', '\t']);
            let end = text.find(['=', ';'])?;
            let (name, after) = text.split_at(end);
            // A word without a value is none, and hides none.
            let Some(value) = after.strip_prefix('=') else {
                rest = Some(after);
                continue;
            };
            let (value, after) = match value.trim_start().strip_prefix('"') {
                Some(quoted) => match unquote(quoted) {
                    Some(read) => read,
                    None => return Some(Err(Ambiguous)),
                },
                None => {
                    let end = value.find(';').unwrap_or(value.len());
                    (value[..end].trim().to_owned(), &value[end..])
                }
            };
            let after = after.trim_start();
            if !after.is_empty() && !after.starts_with(';') {
                return Some(Err(Ambiguous));
            }
            rest = Some(after);
            return Some(Ok((name.trim().to_owned(), value)));
        }
    })
}

fn unquote(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(characters.next()?.1),
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FORM: &str = "--b-1\r\nContent-Disposition: form-data; name=\"language\"\r\n\r\nen\r\n\
         --b-1  \r\ncontent-disposition: form-data; name=model\r\n\r\nwhisper-1\r\n--b-1\r\n\
         Content-Disposition: form-data; name=\"file\"; filename=\"a; name=model.wav\"\r\n\
         Content-Type: audio/wav\r\n\r\nRIFF\r\n--b-\r\r\n--b-2 name=\"model\"\r\n--b-1--\r\nbye";

    /// Reads a form in segments of these lengths; returns it with the name in brackets.
    fn read(form: &[u8], segments: &[usize]) -> Result<Vec<u8>, FormError> {
        let mut scan = FormScan::new("b-1");
        let mut read = Vec::new();
        let mut form = Bytes::copy_from_slice(form);
        let mut segments = segments.iter().cycle();
        while !form.is_empty() {
            let next = (*segments.next().unwrap()).clamp(1, form.len());
            scan.push(form.split_to(next), |piece| match piece {
                Piece::Bytes(bytes) => read.extend_from_slice(&bytes),
                Piece::Model(name) => {
                    read.push(b'[');
                    read.extend_from_slice(&name);
                    read.push(b']');
                }
            })?;
        }
        scan.finish()?;
        Ok(read)
    }

    fn part(headers: &str, value: &str) -> String {
        format!("--b-1\r\n{headers}\r\n\r\n{value}\r\n")
    }

    const MODEL: &str = "Content-Disposition: form-data; name=\"model\"";

    proptest! {
        #[test]
        fn the_model_is_found_and_every_other_byte_passes_whatever_the_segments(
            segments in prop::collection::vec(1_usize..40, 1..20)
        ) {
            let expected = FORM.replace("whisper-1", "[whisper-1]");
            let read = read(FORM.as_bytes(), &segments).unwrap();
            prop_assert_eq!(String::from_utf8(read).unwrap(), expected);
        }

        #[test]
        fn no_bytes_make_it_panic_or_lose_any(
            bytes in prop::collection::vec(
                prop::sample::select(b"\r\n-b1 model;=\":nameContent-Disposition".to_vec()), 0..400
            ),
            segment in 1_usize..50,
        ) {
            let form = [b"--b-1\r\n", bytes.as_slice(), b"\r\n\r\n\r\n--b-1--"].concat();
            if let Ok(read) = read(&form, &[segment]) {
                let marks = read.len() - form.len();
                prop_assert!(marks == 0 || marks == 2);
            }
        }
    }

    #[test]
    fn a_file_passes_by_reference_and_keeps_nothing_waiting() {
        let mut scan = FormScan::new("b-1");
        scan.push(part("x: y", "").into_bytes().into(), drop).unwrap();
        scan.push(Bytes::from_static(b"--b-1\r\nx: y\r\n\r\n"), drop).unwrap();
        let data = Bytes::from(vec![b'\n'; 65_536]);
        let mut pieces = Vec::new();
        scan.push(data.clone(), |piece| pieces.push(piece)).unwrap();
        assert!(scan.kept.is_empty());
        let [Piece::Bytes(passed)] = pieces.as_slice() else { panic!("{pieces:?}") };
        assert_eq!(passed.as_ptr(), data.as_ptr());
    }

    #[test]
    fn a_name_that_servers_could_read_differently_is_refused() {
        let end = "--b-1--\r\n";
        let refused = |form: &str| read(form.as_bytes(), &[7]).unwrap_err();
        let twice = part(MODEL, "a") + &part(MODEL, "a") + end;
        assert_eq!(refused(&twice), FormError::Twice);
        let file = part(&format!("{MODEL}; filename=\"m\""), "a") + end;
        assert_eq!(refused(&file), FormError::Model);
        assert_eq!(refused(&(part(MODEL, &"m".repeat(513)) + end)), FormError::Model);
        assert_eq!(refused(&(part(MODEL, "") + end)), FormError::Model);
        let endless = format!("--b-1\r\nx: {}", "y".repeat(MAX_HEADERS + 1));
        assert_eq!(refused(&endless), FormError::Headers);
        assert_eq!(refused("--b-1 no part"), FormError::Delimiter);
        assert_eq!(refused(&part("x: y", "cut off")), FormError::Unfinished);
        assert_eq!(refused(""), FormError::Unfinished);
    }

    #[test]
    fn a_model_that_only_some_servers_would_see_does_not_pass_unseen() {
        let read = |disposition: &[u8]| {
            let headers = [b"--b-1\r\n", disposition, b"\r\n\r\nm\r\n--b-1--"].concat();
            read(&headers, &[5]).map(|form| form.ends_with(b"\r\n\r\n[m]\r\n--b-1--"))
        };
        for seen in [
            "Content-Disposition: form-data;\r\n name=\"model\"",
            "content-disposition : form-data; x; name=model",
            "Content-Disposition: form-data; name=\"model\" ; x=y",
            "X: y\r\nContent-Disposition: form-data; name=\"mo\\del\"",
        ] {
            assert_eq!(read(seen.as_bytes()), Ok(true), "{seen}");
        }
        let not_utf8 = b"Content-Disposition: form-data; x=\"\xFC\"; name=\"model\"";
        assert_eq!(read(not_utf8), Ok(true));
        for other in [
            "Content-Disposition: form-data; name=\"file\"; filename=\"; name=model\"",
            "Content-Disposition: form-data; name=\"file\"; filename*=UTF-8''model",
            "Content-Disposition: form-data",
            "X-Name: name=\"model\"",
        ] {
            assert_eq!(read(other.as_bytes()), Ok(false), "{other}");
        }
        for refused in [
            "Content-Disposition: form-data; name=\"x\"; name=\"model\"",
            "Content-Disposition: form-data; name=\"x\"; Name=\"model\"",
            "Content-Disposition: form-data; name*=UTF-8''model",
            "Content-Disposition: form-data; name*0=\"mo\"; name*1=\"del\"",
            "Content-Disposition: form-data; x=\"a; name=\"model\"",
            "Content-Disposition: form-data; x=\"a\"b; name=\"model\"",
            "Content-Disposition: form-data; name=\"x\"\r\nContent-Disposition: form-data; name=\"model\"",
        ] {
            assert_eq!(read(refused.as_bytes()), Err(FormError::Disposition), "{refused}");
        }
        let file = "Content-Disposition: form-data; name=\"model\"; filename*=UTF-8''m";
        assert_eq!(read(file.as_bytes()), Err(FormError::Model));
    }

    #[test]
    fn the_boundary_is_read_in_each_spelling() {
        let read = |text: &str| boundary(text).map(Result::ok);
        assert_eq!(read("application/json"), None);
        assert_eq!(read("multipart/form-data; boundary=abc"), Some(Some("abc".to_owned())));
        assert_eq!(
            read("Multipart/Form-Data;charset=x; Boundary=\"a b\\\"c\"; x=y"),
            Some(Some("a b\"c".to_owned()))
        );
        for bad in [
            "",
            "; boundary",
            "; boundary=",
            "; boundary=\"a",
            "; boundary=\"a \"",
            "; boundary=a; boundary=b",
            "; boundary*=a",
        ] {
            assert_eq!(read(&format!("multipart/form-data{bad}")), Some(None), "{bad}");
        }
        assert_eq!(read(&format!("multipart/form-data; boundary={}", "x".repeat(71))), Some(None));
    }
}
