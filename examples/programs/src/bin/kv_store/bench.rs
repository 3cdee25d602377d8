//! Many clients at once, which change and read the same values and check each they get.

use std::thread;
use std::time::Instant;

use programs::kv::load::{Done, Load, Step};
use programs::{Context as _, Failure, Progress};
use verbs_channel::verbs_core::Context;

use crate::Options;
use crate::client::Connection;

pub(crate) fn run(options: &Options, load: &Load, host: &str) -> Result<(), Failure> {
    let context = programs::open(&options.common)?;
    let first = Connection::new(&options.common, &context, host);
    let mut first = first.context(|| "the first client")?;
    for (key, value) in load.first() {
        first.put(&key, &value)?;
    }
    first.bye()?;
    let start = Instant::now();
    let all = thread::scope(|scope| {
        let start = |number| {
            let context = &context;
            scope.spawn(move || {
                let done = client(options, load, host, context, number);
                done.context(|| format!("client {number}"))
            })
        };
        let all: Vec<_> = (1..=load.clients).map(start).collect();
        let mut total = Done::default();
        for client in all {
            let ended = client.join();
            let done = ended.unwrap_or_else(|_| Err(Failure::new("a client's thread panicked")))?;
            total.add(&done);
        }
        Ok::<_, Failure>(total)
    })?;
    load.print(all, start, load.clients)
}

fn client(
    options: &Options,
    load: &Load,
    host: &str,
    context: &Context,
    number: u32,
) -> Result<Done, Failure> {
    let mut connection = Connection::new(&options.common, context, host)?;
    let mut progress = (number == 1).then(|| Progress::new("operations", load.iters.into()));
    let mut done = Done::default();
    for index in 0..load.iters {
        let step = load.step(number, index);
        let start = Instant::now();
        match step {
            Step::Put { key, value } => {
                connection.put(&key, &value)?;
                done.put(start);
            }
            Step::Get { key } => {
                let value = connection.get(&key)?;
                done.get(start);
                load.check(value)?;
            }
        }
        if let Some(progress) = &mut progress {
            progress.at(index.into());
        }
    }
    done.torn(connection.torn);
    connection.bye()?;
    Ok(done)
}
