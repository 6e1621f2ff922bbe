//! A pull as people and programs follow it: a bar in a terminal, lines elsewhere, JSON on demand.

use std::io::{self, Write as _};

use indicatif::{ProgressBar, ProgressStyle};

use super::Line;
use crate::table::shown;

/// Shows progress on standard error, or as JSON on standard output.
pub(super) struct Progress {
    form: Form,
    is_done: bool,
}

enum Form {
    Bar { bar: ProgressBar, layer: Option<String> },
    Lines { last: Option<Told> },
    Json,
}

/// What was said last: said again only when it is news.
#[derive(PartialEq, Eq)]
struct Told {
    status: String,
    tenths: Option<u64>,
}

impl Progress {
    pub(super) fn bar() -> Self {
        let bar = ProgressBar::new(0);
        bar.set_style(spinner());
        Self { form: Form::Bar { bar, layer: None }, is_done: false }
    }

    pub(super) const fn lines() -> Self {
        Self { form: Form::Lines { last: None }, is_done: false }
    }

    pub(super) const fn json() -> Self {
        Self { form: Form::Json, is_done: false }
    }

    /// Says whether the server said that it succeeded.
    pub(super) const fn is_done(&self) -> bool {
        self.is_done
    }

    /// Takes one line of the server's. What it says is printed escaped.
    pub(super) fn see(&mut self, text: &[u8]) {
        let Ok(line) = serde_json::from_slice::<Line>(text) else { return };
        self.is_done = line.status == "success";
        match &mut self.form {
            Form::Bar { bar, layer } => draw(bar, layer, &line),
            Form::Lines { last } => {
                let told = told(&line);
                if last.as_ref() != Some(&told) {
                    eprintln!("{}", words(&told));
                    *last = Some(told);
                }
            }
            Form::Json => {
                let mut out = io::stdout().lock();
                // A reader that has seen enough ends the pull no sooner than its server does.
                let _ = out.write_all(text).and_then(|()| out.write_all(b"\n"));
            }
        }
    }

    /// Leaves the terminal as it should be.
    pub(super) fn leave(&self) {
        match &self.form {
            Form::Bar { bar, .. } => bar.finish_and_clear(),
            Form::Lines { .. } | Form::Json => {}
        }
        if self.is_done && matches!(self.form, Form::Bar { .. }) {
            eprintln!("success");
        }
    }
}

fn draw(bar: &ProgressBar, layer: &mut Option<String>, line: &Line) {
    if *layer != line.digest {
        layer.clone_from(&line.digest);
        // The style first: a reset draws.
        bar.set_style(if line.total.is_some() { bytes() } else { spinner() });
        bar.reset();
    }
    bar.set_message(shown(&line.status));
    if let Some(total) = line.total {
        bar.set_length(total);
        bar.set_position(line.completed.unwrap_or_default());
    } else {
        bar.tick();
    }
}

fn bytes() -> ProgressStyle {
    // What is not the bar takes 39 columns at most. Sizes are decimal, as Ollama prints them.
    style("{msg:12!} {decimal_bytes}/{decimal_total_bytes} {eta} [{wide_bar}]")
        .progress_chars("=> ")
}

fn spinner() -> ProgressStyle {
    style("{spinner} {wide_msg}")
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the templates above are right")
}

fn told(line: &Line) -> Told {
    let tenths = line
        .total
        .filter(|total| *total > 0)
        .map(|total| line.completed.unwrap_or_default().min(total).saturating_mul(10) / total);
    Told { status: line.status.clone(), tenths }
}

fn words(told: &Told) -> String {
    let status = shown(&told.status);
    told.tenths.map_or_else(|| status.clone(), |tenths| format!("{status} {} %", tenths * 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> String {
        words(&told(&serde_json::from_str(text).unwrap()))
    }

    #[test]
    fn lines_tell_tenths_and_nothing_raw() {
        assert_eq!(line(r#"{"status":"pulling manifest"}"#), "pulling manifest");
        assert_eq!(line(r#"{"status":"pulling a","total":100,"completed":57}"#), "pulling a 50 %");
        assert_eq!(line(r#"{"status":"pulling a","total":100}"#), "pulling a 0 %");
        assert_eq!(line(r#"{"status":"a","total":0,"completed":1}"#), "a");
        assert_eq!(line(r#"{"status":"a","total":2,"completed":18446744073709551615}"#), "a 100 %");
        assert_eq!(line("{\"status\":\"\\u001b[2J\"}"), "\\u{1b}[2J");
    }

    /// A terminal of 40 columns that keeps what is written.
    #[derive(Debug, Clone, Default)]
    struct Narrow(std::sync::Arc<std::sync::Mutex<Vec<String>>>);

    impl indicatif::TermLike for Narrow {
        fn width(&self) -> u16 {
            40
        }
        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write_str(text)
        }
        fn write_str(&self, text: &str) -> io::Result<()> {
            self.0.lock().unwrap().push(text.to_owned());
            Ok(())
        }
        fn clear_line(&self) -> io::Result<()> {
            Ok(())
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_bar_fits_a_narrow_terminal_and_counts_as_ollama_does() {
        let terminal = Narrow::default();
        let bar = ProgressBar::with_draw_target(
            Some(0),
            indicatif::ProgressDrawTarget::term_like(Box::new(terminal.clone())),
        );
        let line = r#"{"status":"pulling 6a0746a1ec1aef3e7ec5","digest":"sha256:6a",
            "total":2019393189,"completed":123456789}"#;
        draw(&bar, &mut None, &serde_json::from_str(line).unwrap());
        bar.force_draw();
        let written = terminal.0.lock().unwrap().clone();
        let drawn = written.iter().rfind(|text| text.contains("pulling")).unwrap();
        assert!(drawn.starts_with("pulling 6a07 123.46 MB/2.02 GB"), "{written:?}");
        assert!(written.iter().all(|text| text.chars().count() <= 40), "{written:?}");
    }

    #[test]
    fn only_the_last_word_says_whether_it_is_done() {
        let mut progress = Progress::lines();
        progress.see(br#"{"status":"success"}"#);
        assert!(progress.is_done());
        progress.see(br#"{"status":"verifying"}"#);
        assert!(!progress.is_done());
    }
}
