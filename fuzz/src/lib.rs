//! What the fuzz targets share: how an input says where it is cut.

/// Takes sizes of segments off the front of an input: a number of them, then each in a byte.
pub fn cuts(input: &[u8]) -> (Vec<usize>, &[u8]) {
    let Some((count, rest)) = input.split_first() else { return (Vec::new(), input) };
    let (sizes, rest) = rest.split_at(usize::from(*count % 8).min(rest.len()));
    (sizes.iter().map(|size| usize::from(*size) + 1).collect(), rest)
}

/// Cuts bytes into segments of these sizes in turn; no sizes is one segment.
pub fn segments<'a>(sizes: &[usize], mut bytes: &'a [u8]) -> Vec<&'a [u8]> {
    let mut segments = Vec::new();
    for size in sizes.iter().cycle().take_while(|_| !sizes.is_empty()) {
        if bytes.len() <= *size {
            break;
        }
        let (segment, rest) = bytes.split_at(*size);
        segments.push(segment);
        bytes = rest;
    }
    segments.push(bytes);
    segments
}
