//! Tests of the thread notifier only.

use std::os::fd::AsFd as _;
use std::task::{Context, Waker};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use verbs_async::CqNotifier as _;
use verbs_async::notifier::ThreadNotifier;

use crate::fixture::{drain, pipe, wait_readable, within_limit, write};

#[test]
fn thousands_of_notifiers_share_the_thread() {
    within_limit(|| {
        let limit = getrlimit(Resource::Nofile);
        let most = Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        };
        setrlimit(Resource::Nofile, most).unwrap();
        let all: Vec<_> = (0..2_000)
            .map(|_| {
                let (reader, writer) = pipe();
                let notifier = ThreadNotifier::new(reader.as_fd()).unwrap();
                let mut cx = Context::from_waker(Waker::noop());
                assert!(notifier.poll_readable(&mut cx).is_pending());
                (reader, writer, notifier)
            })
            .collect();
        for (_, writer, _) in all.iter().rev() {
            write(writer);
        }
        for (reader, _, notifier) in &all {
            wait_readable(notifier).unwrap();
            assert_eq!(drain(reader), 1);
        }
    });
}
