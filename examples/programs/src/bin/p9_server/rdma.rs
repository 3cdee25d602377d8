//! Over RDMA: a message is a send, and so is its answer.
//!
//! The mount option `rq` bounds the requests that the kernel's client has in flight; the client
//! fails when one finds no receive. So a receive is posted again before its answer is sent.

use std::collections::VecDeque;
use std::iter;
use std::pin::pin;
use std::time::Duration;

use programs::{Context as _, Failure, say};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use verbs_async::verbs_channel::verbs_core::rdmacm::{ConnectRequest, Listener};
use verbs_async::verbs_channel::verbs_core::{Context, Device};
use verbs_async::verbs_channel::{BufferPool, Channel, Connect, DownReason, OwnedBuffer};
use verbs_async::{AsyncChannel, AsyncGroup, CqEvents};

use crate::Options;
use crate::clients::{Clients, Service, signals};

/// Answers that are being sent, for each client.
const ANSWERS: usize = 16;

/// Accepts clients until a signal ends the server.
pub(crate) async fn accept(options: &Options, mut clients: Clients) -> Result<(), Failure> {
    let listener = Listener::bind(options.listen, BACKLOG);
    let mut listener = listener.context(|| format!("cannot listen at {}", options.listen))?;
    let addr = listener.local_addr().unwrap_or(options.listen);
    let root = options.root.display();
    say(format_args!("serving {root} over RDMA at {addr}"))?;
    let mut signals = pin!(signals()?);
    loop {
        let mut waits = listener;
        let waiting = spawn_blocking(move || (waits.request(Some(TICK)), waits));
        let (request, back) = tokio::select! {
            waited = waiting => waited?,
            () = &mut signals => return clients.end().await,
        };
        listener = back;
        let request = match request {
            Ok(Some(request)) => request,
            Ok(None) => continue,
            Err(error) => {
                clients.failed(error.into()).await?;
                continue;
            }
        };
        let peer = request.peer_addr().unwrap_or(options.listen);
        if clients.has_room()? {
            let options = options.clone();
            clients.start(peer, move |service| async move {
                let (channel, answers) = connect(&options, request).await?;
                serve(options.limit(), channel, answers, service).await
            });
        } else {
            // Dropping the request rejects the client.
            say(format_args!(
                "{peer} is refused: there are as many clients as there may be"
            ))?;
        }
    }
}

/// Accepts a client, with a receive for each message that it may send before the first answer.
async fn connect(
    options: &Options,
    request: ConnectRequest,
) -> Result<(AsyncChannel, BufferPool), Failure> {
    let device = Device::by_name(&request.device_name())?.open()?;
    let (group, depth) = (group(options, &device)?, usize::try_from(options.depth)?);
    let mut prepared = group.prepare()?;
    let pool = BufferPool::new(group.pd(), options.size(), depth + ANSWERS + 1)?;
    for block in iter::from_fn(|| pool.take()).take(depth) {
        prepared.start_receive(block)?;
    }
    let raw = Connect::within(options.limit()).raw_private_data(b"");
    let accepted = group.accept_prepared(prepared, request, raw);
    Ok((accepted.await?.channel, pool))
}

/// Answers one message after the other, until the client has left.
async fn serve(
    limit: Duration,
    channel: AsyncChannel,
    answers: BufferPool,
    mut service: Service,
) -> Result<(), Failure> {
    // Its receives were posted before the client was accepted.
    let mut messages = channel.into_incoming(iter::empty::<OwnedBuffer>());
    let mut sending = VecDeque::with_capacity(ANSWERS);
    while let Some(message) = messages.next().await {
        let message = match message {
            Err(error) if error.down_reason().is_some_and(DownReason::is_peer_closed) => break,
            message => message?,
        };
        if sending.len() == ANSWERS
            && let Some(oldest) = sending.pop_front()
        {
            let sent = timeout(limit, oldest).await;
            let (sent, _block) = sent.map_err(|_over| Failure::new("it takes no answers"))?;
            let _success = sent?;
        }
        let block = answers.take();
        let mut answer = block.ok_or_else(|| Failure::new("no buffer is left"))?;
        let len = service.answer(&message, &mut answer)?;
        let answer = answer.into_range(..len)?;
        // Posts its receive again: with the answer, the client may send the next message.
        drop(message);
        sending.push_back(messages.channel().send(answer));
    }
    Ok(())
}

/// A group for one client: its completions wake no thread but its own.
fn group(options: &Options, device: &Context) -> Result<AsyncGroup, Failure> {
    let pd = device.alloc_pd()?;
    let builder = Channel::builder(&pd)
        .max_send_wr(u32::try_from(ANSWERS)?)
        .max_recv_wr(options.depth);
    Ok(AsyncGroup::new(
        builder,
        1,
        &CqEvents::create_tokio(device)?,
    )?)
}

/// How long a thread waits for a client at a time: when the server ends, it is awaited.
const TICK: Duration = Duration::from_millis(100);

/// Clients that may wait to be accepted.
const BACKLOG: u16 = 128;
