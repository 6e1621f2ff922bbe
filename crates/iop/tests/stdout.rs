//! A server whose standard output or log cannot be written serves on.
#![cfg(target_os = "linux")]

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

#[test]
fn a_server_outlives_its_standard_output() {
    let data_dir = tempfile::tempdir().expect("a folder for history");
    let full =
        OpenOptions::new().write(true).open("/dev/full").expect("a device that takes nothing");
    let mut up = Command::new(env!("CARGO_BIN_EXE_iop"))
        .args(["up", "--demo", "--listen", "127.0.0.1:0", "--node-listen", "127.0.0.1:0"])
        .args(["--admin-listen", "127.0.0.1:0", "--data-dir"])
        .arg(data_dir.path())
        .stdout(full)
        .stderr(Stdio::piped())
        .spawn()
        .expect("iop starts");
    let mut told = false;
    let said: Vec<_> = BufReader::new(up.stderr.take().expect("it is piped"))
        .lines()
        .map_while(Result::ok)
        .inspect(|line| {
            // Once: a second signal would not wait for anything.
            if line.contains("standard output cannot be written")
                && !std::mem::replace(&mut told, true)
            {
                let id = up.id().to_string();
                Command::new("kill").args(["-TERM", &id]).status().expect("it can be told to stop");
            }
        })
        .collect();
    let status = up.wait().expect("it ends");
    assert!(status.success(), "{status}: {said:?}");
    assert!(said.iter().any(|line| line.contains("standard output")), "{said:?}");
}

#[test]
fn a_server_outlives_its_log() {
    let data_dir = tempfile::tempdir().expect("a folder for history");
    let full =
        OpenOptions::new().write(true).open("/dev/full").expect("a device that takes nothing");
    let mut up = Command::new(env!("CARGO_BIN_EXE_iop"))
        .args(["--log", "debug", "up", "--demo", "--try", "still there?"])
        .args(["--listen", "127.0.0.1:0", "--node-listen", "127.0.0.1:0"])
        .args(["--admin-listen", "127.0.0.1:0", "--data-dir"])
        .arg(data_dir.path())
        .stdout(Stdio::piped())
        .stderr(full)
        .spawn()
        .expect("iop starts");
    let mut told = false;
    let said: Vec<_> = BufReader::new(up.stdout.take().expect("it is piped"))
        .lines()
        .map_while(Result::ok)
        .inspect(|line| {
            if line.starts_with("Serving on") && !std::mem::replace(&mut told, true) {
                let id = up.id().to_string();
                Command::new("kill").args(["-TERM", &id]).status().expect("it can be told to stop");
            }
        })
        .collect();
    let status = up.wait().expect("it ends");
    assert!(status.success(), "{status}: {said:?}");
    assert!(said.iter().any(|line| line.contains("You wrote: still there?")), "{said:?}");
}
