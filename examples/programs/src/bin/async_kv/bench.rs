//! Many tasks at once, which change and read the same values and check each they get.

use std::sync::Arc;
use std::time::Instant;

use programs::kv::load::{Done, Load, Step};
use programs::{Context as _, Failure, Progress};
use tokio::task::JoinSet;

use crate::Options;
use crate::connection::Connection;

/// Runs the load with `tasks` tasks on the connection of each client.
pub(crate) async fn run(
    options: &Options,
    load: &Load,
    tasks: u32,
    host: &str,
) -> Result<(), Failure> {
    let group = options.group(load.clients)?;
    let mut connections = Vec::new();
    for number in 1..=load.clients {
        let connection = Connection::new(&group, &options.common, host).await;
        connections.push(Arc::new(connection.context(|| format!("client {number}"))?));
    }
    if let Some(connection) = connections.first() {
        let first = async {
            for (key, value) in load.first() {
                connection.put(&key, &value).await?;
            }
            Ok(())
        };
        connection.watched(first).await?;
    }
    let start = Instant::now();
    let mut running = JoinSet::new();
    for (client, connection) in (0..).zip(&connections) {
        for task in 0..tasks {
            let (connection, load) = (Arc::clone(connection), load.clone());
            let number = client * tasks + task + 1;
            running.spawn(async move {
                let done = connection.watched(work(&connection, &load, number)).await;
                done.context(|| format!("task {number}"))
            });
        }
    }
    let mut all = Done::default();
    while let Some(ended) = running.join_next().await {
        all.add(&ended??);
    }
    // The time is that of the load, without closing the connections.
    load.print(all_torn(all, &connections), start, load.clients * tasks)?;
    for connection in connections {
        // The tasks, which shared it, have ended.
        if let Some(connection) = Arc::into_inner(connection) {
            connection.bye().await?;
        }
    }
    Ok(())
}

async fn work(connection: &Connection, load: &Load, number: u32) -> Result<Done, Failure> {
    let mut progress = (number == 1).then(|| Progress::new("operations", load.iters.into()));
    let mut done = Done::default();
    for index in 0..load.iters {
        let step = load.step(number, index);
        let start = Instant::now();
        match step {
            Step::Put { key, value } => {
                connection.put(&key, &value).await?;
                done.put(start);
            }
            Step::Get { key } => {
                let value = connection.get(&key).await?;
                done.get(start);
                load.check(value.as_deref())?;
            }
        }
        if let Some(progress) = &mut progress {
            progress.at(index.into());
        }
    }
    Ok(done)
}

fn all_torn(mut all: Done, connections: &[Arc<Connection>]) -> Done {
    for connection in connections {
        all.torn(connection.torn());
    }
    all
}
