//! The server: many clients on one channel group, one thread, and one poller.

use std::collections::HashMap;
use std::io;
use std::net::TcpStream;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use programs::kv::{HEADER, MAX_KEY, Reply, Request, Values, Welcome};
use programs::{Context as _, Failure, Listener, say};
use verbs_channel::engine::ConnectedMember;
use verbs_channel::verbs_core::RemoteMemoryRegion;
use verbs_channel::verbs_core::codes::WcOpcode;
use verbs_channel::{
    BufferPool, Channel, ChannelGroup, ChannelId, Completed, Connect, OwnedBuffer, PollStrategy,
    PreparedChannel,
};

use crate::Options;
use crate::store::Store;

/// The most requests of a client in flight. Each is answered from the buffer it arrived in.
pub(crate) const DEPTH: u32 = 2;
/// How often new clients are accepted, and silent ones checked.
const TICK: Duration = Duration::from_millis(20);
/// How long a client is silent before it is probed.
const SILENCE: Duration = Duration::from_secs(1);

struct Client {
    number: u64,
    last_active: Instant,
    // Replies and a probe that the client's device has not acknowledged, and since when it acknowledged
    // none.
    sending: u32,
    since: Instant,
    probe: Option<OwnedBuffer>,
}

type Joined = (u64, Result<ConnectedMember, Failure>);

struct Server<'o> {
    options: &'o Options,
    listener: Listener,
    group: ChannelGroup,
    pool: BufferPool,
    store: Store,
    // Clients by their number in the group.
    clients: HashMap<ChannelId, Client>,
    joined: Receiver<Joined>,
    joining: (Sender<Joined>, u32),
    came: u64,
    requests: u64,
    bad: u64,
}

/// Serves until the number of clients in the options have left, or no more connect in time.
pub(crate) fn serve(options: &Options) -> Result<(), Failure> {
    let common = &options.common;
    let context = programs::open(common)?;
    let pd = context.alloc_pd()?;
    let max_value = usize::try_from(options.max_value)?;
    let store = Store::new(&pd, options.capacity, max_value)?;
    let blocks = usize::try_from(options.max_clients * (DEPTH + 1))?;
    let pool = BufferPool::new(&pd, HEADER + MAX_KEY + max_value, blocks)?;
    let group = Channel::builder(&pd)
        .port_num(common.ib_port)
        .gid_index(common.gid_idx)
        .max_recv_wr(DEPTH)
        .max_send_wr(DEPTH + 1)
        .timeout(common.limit())
        .strategy(PollStrategy::Notify { after: 100 })
        .group(options.max_clients)?;
    let listener = Listener::bind(common.port)?;
    let (device, port) = (context.device().name(), listener.port());
    say(format_args!(
        "{} values of at most {max_value} bytes on {device}, TCP port {port}",
        options.capacity
    ))?;
    let (sender, joined) = mpsc::channel();
    let server = Server {
        options,
        listener,
        group,
        pool,
        store,
        clients: HashMap::new(),
        joined,
        joining: (sender, 0),
        came: 0,
        requests: 0,
        bad: 0,
    };
    server.run()
}

impl Server<'_> {
    fn run(mut self) -> Result<(), Failure> {
        let mut looked = Instant::now();
        let mut busy = Instant::now();
        loop {
            if let Some(completed) = self.group.wait_completed(TICK) {
                self.take(completed)?;
            }
            if looked.elapsed() >= TICK {
                looked = Instant::now();
                self.let_in()?;
                self.look_after()?;
                let is_empty = self.clients.is_empty() && self.joining.1 == 0;
                if !is_empty {
                    busy = Instant::now();
                } else if self.options.clients.is_some_and(|all| self.came >= all)
                    || (self.came > 0 && busy.elapsed() >= self.options.common.wait())
                {
                    break;
                } else if busy.elapsed() >= self.options.common.wait() {
                    let wait = self.options.common.wait;
                    return Err(Failure::new(format!(
                        "no client came in {wait} s (--wait waits longer)"
                    )));
                }
            }
        }
        let Self {
            came,
            requests,
            bad,
            ..
        } = self;
        say(format_args!(
            "{came} clients, {requests} requests, {bad} of them bad"
        ))
    }

    /// Accepts new clients. Each is connected by a thread of its own, so that a slow one does not
    /// delay the others.
    fn let_in(&mut self) -> Result<(), Failure> {
        while let Ok((stream, _from)) = self.listener.socket().accept() {
            let open = self.group.len() + usize::try_from(self.joining.1)?;
            if open < usize::try_from(self.options.max_clients)? {
                self.came += 1;
                self.connect(stream)?;
            } else {
                let full = io::Error::other("the server has as many clients as it may");
                PreparedChannel::refuse(&stream, TICK, &full);
            }
        }
        while let Ok((number, connected)) = self.joined.try_recv() {
            self.joining.1 -= 1;
            match connected.and_then(|member| self.join(number, member)) {
                Ok(()) => say(format_args!("client {number} is here"))?,
                Err(why) => say(format_args!("client {number} did not get in: {why}"))?,
            }
        }
        Ok(())
    }

    fn connect(&mut self, stream: TcpStream) -> Result<(), Failure> {
        let member = self.group.prepare()?;
        let values = Values {
            region: self.store.region(),
            max_value: self.options.max_value,
        };
        let welcome = Welcome::encode(Some(values))?;
        let (number, limit) = (self.came, self.options.common.limit());
        let sender = self.joining.0.clone();
        self.joining.1 += 1;
        thread::spawn(move || {
            let connected = member.exchange(&stream, Connect::within(limit).private_data(&welcome));
            let member = connected
                .context(|| "cannot connect")
                .and_then(|met| Welcome::decode(&met.private_data).map(|_none| met.channel));
            // The channel is closed only when the server ends.
            drop(sender.send((number, member)));
        });
        Ok(())
    }

    fn join(&mut self, number: u64, member: ConnectedMember) -> Result<(), Failure> {
        let at = self.group.join(member)?;
        let now = Instant::now();
        let client = Client {
            number,
            last_active: now,
            sending: 0,
            since: now,
            probe: self.pool.take().map(OwnedBuffer::from),
        };
        drop(self.clients.insert(at, client));
        for _ in 0..DEPTH {
            match self.pool.take() {
                Some(block) => self.listen(at, block.into())?,
                None => return self.part(at, "no buffers are left for it"),
            }
        }
        Ok(())
    }

    /// Posts a receive for a client's next request.
    fn listen(&mut self, at: ChannelId, mut buffer: OwnedBuffer) -> Result<(), Failure> {
        buffer.set_range(..)?;
        match self.group.channel(at)?.start_receive(buffer) {
            Ok(_ticket) => Ok(()),
            Err(rejected) => self.part(at, &format!("is gone: {rejected}")),
        }
    }

    /// Handles a completion of a client: of a request, a reply or a probe.
    fn take(&mut self, completed: Completed) -> Result<(), Failure> {
        let Completed {
            channel: at,
            result,
            buffer: Some(buffer),
            ..
        } = completed
        else {
            return Ok(());
        };
        let Some(client) = self.clients.get_mut(&at) else {
            // The client was removed; its buffers return to the pool.
            return Ok(());
        };
        let success = match result {
            Ok(success) => success,
            Err(error) => {
                let why = Failure::from(error);
                return self.part(at, &format!("is gone: {why}"));
            }
        };
        client.last_active = Instant::now();
        client.since = client.last_active;
        match success.opcode() {
            WcOpcode::RECV => self.answer(at, buffer, success.byte_len()),
            WcOpcode::RDMA_WRITE => {
                client.sending -= 1;
                client.probe = Some(buffer);
                Ok(())
            }
            _ => {
                client.sending -= 1;
                self.listen(at, buffer)
            }
        }
    }

    /// Answers a request from the buffer it arrived in.
    fn answer(&mut self, at: ChannelId, mut buffer: OwnedBuffer, len: u32) -> Result<(), Failure> {
        self.requests += 1;
        let request = Request::decode(buffer.get(..usize::try_from(len)?).unwrap_or_default());
        let reply = match request {
            Ok(Request::Bye) => return self.part(at, "left"),
            Ok(request) => self.store.answer(&request, buffer.capacity())?,
            Err(bad) => {
                self.bad += 1;
                Reply::Refused(format!("the request is bad: {bad}"))
            }
        };
        let len = reply.encode(&mut buffer);
        buffer.set_range(..len)?;
        let sent = self.group.channel(at)?.start_send(buffer);
        self.sent(
            at,
            sent.map(drop)
                .map_err(|rejected| Failure::from(*rejected.error()).to_string()),
        )
    }

    /// Records that a message to a client is in flight.
    fn sent(&mut self, at: ChannelId, sent: Result<(), String>) -> Result<(), Failure> {
        match (sent, self.clients.get_mut(&at)) {
            (Ok(()), Some(client)) => {
                if client.sending == 0 {
                    client.since = Instant::now();
                }
                client.sending += 1;
                Ok(())
            }
            (Err(why), _) => self.part(at, &format!("is gone: {why}")),
            (Ok(()), None) => Ok(()),
        }
    }

    /// Probes clients that are silent, and removes those that receive nothing.
    ///
    /// A probe is a write of no bytes: the client's device answers it as long as the client lives,
    /// and the client need not do anything. Without it a client that died silently would never be
    /// detected.
    fn look_after(&mut self) -> Result<(), Failure> {
        let limit = self.options.common.limit();
        let is_stuck = |client: &Client| client.sending > 0 && client.since.elapsed() >= limit;
        let stuck = self.clients.iter().filter(|(_, client)| is_stuck(client));
        for at in stuck.map(|(at, _)| *at).collect::<Vec<_>>() {
            self.part(at, "is stuck: it takes no replies")?;
        }
        let silent = self
            .clients
            .iter_mut()
            .filter(|(_, client)| client.last_active.elapsed() >= SILENCE);
        let probes: Vec<_> = silent
            .filter_map(|(at, client)| Some((*at, client.probe.take()?)))
            .collect();
        for (at, mut probe) in probes {
            probe.set_range(..0)?;
            let nowhere = RemoteMemoryRegion::new(0, 0, 0)?;
            let sent = self.group.channel(at)?.start_write(probe, nowhere);
            self.sent(
                at,
                sent.map(drop)
                    .map_err(|rejected| Failure::from(*rejected.error()).to_string()),
            )?;
        }
        Ok(())
    }

    /// Removes a client. Its buffers are returned by completions; after that, another client can have
    /// its place.
    fn part(&mut self, at: ChannelId, how: &str) -> Result<(), Failure> {
        let Some(client) = self.clients.remove(&at) else {
            return Ok(());
        };
        self.group.remove(at)?;
        say(format_args!("client {} {how}", client.number))
    }
}
