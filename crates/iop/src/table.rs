//! Tables for people.

use std::fmt::Write as _;

/// Lays out rows under headings, columns as wide as their widest cell, two spaces apart.
pub(crate) fn table<const N: usize>(headings: [&str; N], rows: &[[String; N]]) -> String {
    let mut widths = headings.map(|heading| heading.chars().count());
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    line(&mut text, &widths, headings.iter().copied());
    for row in rows {
        line(&mut text, &widths, row.iter().map(String::as_str));
    }
    text
}

fn line<'a>(text: &mut String, widths: &[usize], cells: impl Iterator<Item = &'a str>) {
    let start = text.len();
    for (width, cell) in widths.iter().zip(cells) {
        let pad = width.saturating_sub(cell.chars().count());
        let _ = write!(text, "{cell}{:pad$}  ", "");
    }
    text.truncate(start + text[start..].trim_end().len());
    text.push('\n');
}

/// Shows a duration in milliseconds as people say it.
pub(crate) fn millis(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..60_000 => format!("{}.{} s", ms / 1_000, ms % 1_000 / 100),
        60_000..3_600_000 => format!("{} min {:02} s", ms / 60_000, ms % 60_000 / 1_000),
        _ => format!("{} h {:02} min", ms / 3_600_000, ms % 3_600_000 / 60_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["a".to_owned(), "1".to_owned()], ["long name".to_owned(), String::new()]];
        assert_eq!(table(["NAME", "N"], &rows), "NAME       N\na          1\nlong name\n");
    }

    #[test]
    fn durations_read_as_people_say_them() {
        assert_eq!(millis(7), "7 ms");
        assert_eq!(millis(1_250), "1.2 s");
        assert_eq!(millis(61_000), "1 min 01 s");
        assert_eq!(millis(3_660_000), "1 h 01 min");
    }
}
