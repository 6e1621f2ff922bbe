//! The cells of a run.

use super::RunError;
use std::fmt;

/// What is measured in one turn, and for how long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    name: &'static str,
    kind: &'static str,
    connections: usize,
    prompt_bytes: usize,
    warmup: f64,
    seconds: f64,
    /// Whether it is measured only where it is named.
    on_request: bool,
}

/// Paced first: memory for each open stream is only clean on processes that have done little.
const CELLS: [Cell; 7] = [
    Cell { warmup: 1.5, seconds: 4.0, ..cell("paced-500x20", "paced", 500) },
    // Twice the streams of the table: whether one link carries a thousand.
    Cell { warmup: 3.0, seconds: 4.0, on_request: true, ..cell("paced-1000x20", "paced", 1000) },
    cell("unary-1", "unary", 1),
    cell("unary-64", "unary", 64),
    cell("stream-1", "stream", 1),
    cell("stream-64", "stream", 64),
    Cell { prompt_bytes: 64 * 1024, ..cell("prompt64k-16", "unary", 16) },
];

/// The chunk rate of paced cells: a usual speed of generation.
const RATE: u32 = 20;

impl Cell {
    /// The cells with these names, or all.
    pub(super) fn selected(quick: bool, names: &[String]) -> Result<Vec<Self>, RunError> {
        if let Some(unknown) = names.iter().find(|name| CELLS.iter().all(|cell| cell.name != *name))
        {
            let all = CELLS.map(|cell| cell.name).join(", ");
            return Err(RunError::UnknownName(unknown.clone(), all));
        }
        let wanted = |cell: &Self| match names {
            [] => !cell.on_request,
            names => names.iter().any(|name| name == cell.name),
        };
        let mut cells: Vec<Self> = CELLS.into_iter().filter(wanted).collect();
        if quick {
            for cell in &mut cells {
                cell.seconds *= 0.4;
                // Opening 500 streams takes what it takes.
                cell.warmup *= if cell.kind == "paced" { 1.0 } else { 0.5 };
            }
        }
        Ok(cells)
    }

    /// The command line of the load, without its target.
    pub(super) fn load_arguments(&self) -> Vec<String> {
        vec![
            "load".to_owned(),
            format!("--cell={}", self.kind),
            format!("--connections={}", self.connections),
            format!("--prompt-bytes={}", self.prompt_bytes),
            format!("--warmup={}", self.warmup),
            format!("--seconds={}", self.seconds),
            format!("--rate={RATE}"),
        ]
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

const fn cell(name: &'static str, kind: &'static str, connections: usize) -> Cell {
    Cell {
        name,
        kind,
        connections,
        prompt_bytes: 300,
        warmup: 0.5,
        seconds: 2.0,
        on_request: false,
    }
}
