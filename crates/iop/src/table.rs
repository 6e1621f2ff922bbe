//! Tables for people.

use std::fmt::Write as _;
use std::iter::repeat_n;

/// Lays out rows under headings, columns as wide as their widest cell, two spaces apart.
///
/// Cells hold what others named; none can write to the terminal but its own text.
pub(crate) fn table<const N: usize>(headings: [&str; N], rows: &[[String; N]]) -> String {
    let rows: Vec<_> = rows.iter().map(|row| row.each_ref().map(|cell| shown(cell))).collect();
    let mut widths = headings.map(|heading| heading.chars().count());
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    line(&mut text, &widths, headings.iter().copied());
    for row in &rows {
        line(&mut text, &widths, row.iter().map(String::as_str));
    }
    text
}

fn line<'a>(text: &mut String, widths: &[usize], cells: impl Iterator<Item = &'a str>) {
    let start = text.len();
    for (width, cell) in widths.iter().zip(cells) {
        let pad = width.saturating_sub(cell.chars().count());
        text.push_str(cell);
        text.extend(repeat_n(' ', pad + 2));
    }
    text.truncate(start + text[start..].trim_end().len());
    text.push('\n');
}

/// Names the first of many models and says how many more there are, and where.
pub(crate) fn few(models: &[String], limit: usize) -> String {
    let named: Vec<_> = models.iter().take(limit).map(|model| shown(model)).collect();
    match models.len().saturating_sub(limit) {
        0 => named.join(", "),
        more => format!("{} and {more} more: iop models", named.join(", ")),
    }
}

/// Returns a name that somebody else gave as it can be printed: what would move the cursor, speak to
/// the terminal or turn the direction of writing is escaped.
pub(crate) fn shown(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for c in name.chars() {
        match c {
            c if turns(c) => text.extend(c.escape_unicode()),
            c if c.is_control() => text.extend(c.escape_default()),
            c => text.push(c),
        }
    }
    text
}

/// Returns text of several lines that somebody else wrote as it can be printed: as [`shown`], but
/// for line ends and tabs.
pub(crate) fn printable(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    for (at, line) in text.split('\n').enumerate() {
        if at > 0 {
            printable.push('\n');
        }
        for (at, part) in line.strip_suffix('\r').unwrap_or(line).split('\t').enumerate() {
            if at > 0 {
                printable.push('\t');
            }
            printable.push_str(&shown(part));
        }
    }
    printable
}

/// Returns JSON that means the same and can be printed: JSON lets characters stand in strings that
/// terminals obey.
pub(crate) fn printable_json(json: &str) -> String {
    let mut printable = String::with_capacity(json.len());
    for c in json.chars() {
        let obeyed = (c.is_control() && !matches!(c, '\n' | '\t' | '\r')) || turns(c);
        if obeyed {
            // All of them are in the first plane.
            let _ = write!(printable, "\\u{:04x}", u32::from(c));
        } else {
            printable.push(c);
        }
    }
    printable
}

/// Says whether a character turns the direction of writing.
const fn turns(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
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
    fn a_cell_may_be_longer_than_any_terminal() {
        // Formatting widths end at 65 535.
        let rows = [["a".to_owned(), "1".to_owned()], ["x".repeat(70_000), "2".to_owned()]];
        let text = table(["NAME", "N"], &rows);
        let mut lines = text.lines().skip(1);
        assert_eq!(lines.next().map(str::len), Some(70_003));
        assert_eq!(lines.next().map(str::len), Some(70_003));
    }

    #[test]
    fn a_long_list_of_models_is_cut() {
        let models: Vec<_> = (0..30).map(|at| format!("m{at}")).collect();
        assert!(few(&models, 20).ends_with("m19 and 10 more: iop models"));
        assert_eq!(few(&models[..2], 2), "m0, m1");
    }

    #[test]
    fn a_name_from_elsewhere_cannot_speak_to_the_terminal() {
        let rows = [["a\u{1b}[31m\nb\u{202e}é".to_owned()]];
        assert_eq!(table(["NAME"], &rows), "NAME\na\\u{1b}[31m\\nb\\u{202e}é\n");
    }

    #[test]
    fn text_keeps_its_lines_and_loses_its_power() {
        assert_eq!(printable("a\tb\r\nc\u{1b}]0;t\u{7}"), "a\tb\nc\\u{1b}]0;t\\u{7}");
        assert_eq!(printable("over\rwritten\u{9b}2J"), "over\\rwritten\\u{9b}2J");
        assert_eq!(printable("été 模型 🦀"), "été 模型 🦀");
    }

    #[test]
    fn json_means_the_same_when_it_is_printed() {
        let value = serde_json::json!({ "a": "\u{7f}\u{9b}2J\u{202e}x\u{1b}[0m" });
        let printed = printable_json(&format!("{value:#}"));
        assert!(!printed.contains(['\u{7f}', '\u{9b}', '\u{202e}', '\u{1b}']), "{printed:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&printed).unwrap(), value);
    }

    #[test]
    fn durations_read_as_people_say_them() {
        assert_eq!(millis(7), "7 ms");
        assert_eq!(millis(1_250), "1.2 s");
        assert_eq!(millis(61_000), "1 min 01 s");
        assert_eq!(millis(3_660_000), "1 h 01 min");
    }
}
