//! Two processes and one invitation.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::*;

/// The file over which a child races; set only for a child.
const CHILD_FILE: &str = "IOP_STORE_TEST_RACE_FILE";
const ROUNDS: u8 = 100;

#[tokio::test]
async fn of_two_processes_exactly_one_burns_an_invitation_each_time() {
    let home = home();
    let mut racers = [Racer::start(&home.file), Racer::start(&home.file)];
    for round in 0..ROUNDS {
        home.store.invite(&act(), invitation(round, 1)).await.expect("invites");
        for racer in &mut racers {
            racer.go(round);
        }
        let won = racers.iter_mut().map(Racer::result).filter(|won| *won).count();
        assert_eq!(won, 1, "round {round}");
    }
    for racer in racers {
        racer.finish();
    }
    home.store.verify_audit().await.expect("the log of three processes is one chain");
    let left = home.store.invitations(at(0)).await.expect("reads");
    assert!(left.is_empty(), "{left:?}");
}

/// A child that burns what it is told to.
struct Racer {
    child: Child,
    to: ChildStdin,
    from: std::io::Lines<BufReader<ChildStdout>>,
}

impl Racer {
    fn start(file: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "managed::tests::race::child", "--nocapture"])
            .env(CHILD_FILE, file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        let to = child.stdin.take().expect("piped");
        let from = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut racer = Self { child, to, from };
        racer.wait_for(&["ready"]);
        racer
    }

    fn go(&mut self, round: u8) {
        writeln!(self.to, "{round}").expect("writes");
    }

    fn result(&mut self) -> bool {
        self.wait_for(&["won", "lost"]) == "won"
    }

    fn wait_for(&mut self, words: &[&'static str]) -> &'static str {
        self.from
            .by_ref()
            .map(|line| line.expect("readable"))
            .find_map(|line| words.iter().copied().find(|word| line.ends_with(word)))
            .expect("said before it ended")
    }

    fn finish(self) {
        let Self { mut child, to, from } = self;
        drop(to);
        // Read to the end, so that the child can write its last words.
        for line in from {
            line.expect("readable");
        }
        assert!(child.wait().expect("ends").success());
    }
}

/// What a child runs; does nothing as a test.
#[tokio::test]
async fn child() {
    let Some(file) = std::env::var_os(CHILD_FILE) else { return };
    let store = ManagedStore::open_at(Path::new(&file), key(1)).expect("opens");
    println!("\nready");
    for line in std::io::stdin().lines() {
        let round: u8 = line.expect("readable").parse().expect("a number");
        let id = InvitationId([round; 16]);
        match store.burn_invitation(&act(), id, [round; 32]).await {
            Ok(_) => println!("\nwon"),
            Err(BurnError::Unknown) => println!("\nlost"),
            Err(error) => panic!("{error:?}"),
        }
    }
}
