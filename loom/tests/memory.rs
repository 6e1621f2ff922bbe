//! The count of what is buffered.

use iop_loom::memory::Budget;
use loom::thread;

#[test]
fn bodies_that_grow_at_once_never_exceed_their_budget_and_all_of_it_returns() {
    loom::model(|| {
        let budget = Budget::new(10);
        let grow = |budget: Budget| {
            move || {
                let mut share = budget.share();
                let grown = share.grow(6).is_ok();
                assert!(budget.used() <= 10);
                grown
            }
        };
        let other = thread::spawn(grow(budget.clone()));
        let own = grow(budget.clone())();
        let other = other.join().unwrap();
        assert!(own || other, "whoever comes first fits");
        let stats = budget.stats();
        assert_eq!((stats.used, stats.refused), (0, u64::from(own != other)));
        assert!(stats.peak <= 10);
    });
}
