//! The server: all clients on one shared receive queue, one completion queue and one thread.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::TcpStream;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use programs::{Context as _, Failure, Listener, say};
use verbs_channel::engine::ConnectedMember;
use verbs_channel::group::MemberFactory;
use verbs_channel::verbs_core::AckTimeout;
use verbs_channel::{
    BufferPool, Channel, ChannelGroup, ChannelId, Completed, Connect, Message, OwnedBuffer,
    PollStrategy, PreparedChannel,
};

use crate::Options;
use crate::figures::Figures;
use crate::plan::{self, Kind, MAX_LEN, WINDOW};

/// How often new clients are accepted, and stuck ones looked for.
const TICK: Duration = Duration::from_millis(5);

struct Client {
    // Answers that its device has not acknowledged, and since when it acknowledged none.
    sending: u32,
    since: Instant,
    // Answers for which its send queue, or the budget, had no room.
    waiting: VecDeque<OwnedBuffer>,
    has_left: bool,
}

struct Server<'o> {
    options: &'o Options,
    listener: Listener,
    group: ChannelGroup,
    factory: MemberFactory,
    clients: HashMap<ChannelId, Client>,
    joined: Receiver<Joined>,
    joining: (Sender<Joined>, u32),
    figures: Figures,
}

type Joined = Result<ConnectedMember, Failure>;

/// Serves until the number of connections in the options have come and gone, or no more come in
/// time.
pub(crate) fn serve(options: &Options) -> Result<(), Failure> {
    let common = &options.common;
    let context = programs::open(common)?;
    let pd = context.alloc_pd()?;
    // Beside the receives: the answers of clients that take theirs late.
    let blocks = options.receives + 2 * WINDOW * options.max_clients;
    let pool = BufferPool::new(&pd, usize::try_from(MAX_LEN)?, usize::try_from(blocks)?)?;
    let group = Channel::builder(&pd)
        .port_num(common.ib_port)
        .gid_index(common.gid_idx)
        .max_send_wr(WINDOW)
        .in_flight(options.in_flight)
        .ack_timeout(AckTimeout::new(plan::ACK_TIMEOUT)?)
        .strategy(PollStrategy::Notify { after: 100 })
        .shared_receives(&pool, options.receives)
        .group(options.max_clients)?;
    let listener = Listener::bind(common.port)?;
    let (device, port) = (context.device().name(), listener.port());
    say(format_args!(
        "up to {} clients on {device}, {} receives for all of them, TCP port {port}",
        options.max_clients, options.receives
    ))?;
    let (sender, joined) = mpsc::channel();
    let server = Server {
        options,
        listener,
        factory: group.factory(),
        group,
        clients: HashMap::new(),
        joined,
        joining: (sender, 0),
        figures: Figures::start()?,
    };
    server.run()
}

impl Server<'_> {
    fn run(mut self) -> Result<(), Failure> {
        let (mut looked, mut busy) = (Instant::now(), Instant::now());
        loop {
            if let Some(message) = self.group.wait_message(TICK) {
                self.take(message)?;
            }
            while let Some(completed) = self.group.next_completed() {
                self.acknowledged(completed)?;
            }
            if looked.elapsed() < TICK {
                continue;
            }
            looked = Instant::now();
            self.let_in()?;
            self.remove_stuck()?;
            let (came, wait) = (self.figures.came, self.options.common.wait());
            if !self.clients.is_empty() || self.joining.1 > 0 {
                busy = Instant::now();
            } else if self.options.clients.is_some_and(|all| came >= all)
                || (came > 0 && busy.elapsed() >= wait)
            {
                return self.figures.print();
            } else if busy.elapsed() >= wait {
                let wait = wait.as_secs();
                return Err(Failure::new(format!(
                    "no client came in {wait} s (--wait waits longer)"
                )));
            }
        }
    }

    /// Handles what came on the shared queue: a request, or the end of a channel.
    fn take(&mut self, message: Message) -> Result<(), Failure> {
        let id = message.channel;
        let Some(client) = self.clients.get_mut(&id) else {
            // It was removed; the block returns to the pool.
            return Ok(());
        };
        let Some(bytes) = message.bytes() else {
            let how = match (client.has_left, message.end()) {
                (true, _) => None,
                (false, Some(reason)) => Some(reason.to_string()),
                (false, None) => Some("it sent an immediate".to_owned()),
            };
            return self.part(id, how.as_deref());
        };
        match plan::Message::read(bytes) {
            Ok(plan::Message {
                kind: Kind::Bye, ..
            }) => {
                client.has_left = true;
                Ok(())
            }
            Ok(request) if request.kind == Kind::Request => {
                let len = bytes.len();
                let mut buffer = message.buffer;
                buffer.set_range(..len)?;
                request.answer().write(&mut buffer)?;
                self.figures.requests += 1;
                self.reply(id, buffer)
            }
            Ok(_) => self.bad(id, "it sent an answer"),
            Err(why) => self.bad(id, &why.to_string()),
        }
    }

    /// Sends an answer from the block that its request arrived in, or keeps it until there is room.
    fn reply(&mut self, id: ChannelId, answer: OwnedBuffer) -> Result<(), Failure> {
        let Some(client) = self.clients.get_mut(&id) else {
            return Ok(());
        };
        // Blocks are for all clients: one that takes no answers has a few of them at most.
        if client.waiting.len() == usize::try_from(WINDOW)? {
            return self.bad(id, "it sends requests and takes no answers");
        }
        client.waiting.push_back(answer);
        self.send_waiting(id)
    }

    fn send_waiting(&mut self, id: ChannelId) -> Result<(), Failure> {
        let Some(client) = self.clients.get_mut(&id) else {
            return Ok(());
        };
        let mut channel = self.group.channel(id)?;
        // Its outcomes that were not taken count, too.
        while client.sending < WINDOW
            && let Some(answer) = client.waiting.pop_front()
        {
            match channel.start_send(answer) {
                Ok(_found_by_its_channel) => {
                    if client.sending == 0 {
                        client.since = Instant::now();
                    }
                    client.sending += 1;
                }
                // Room comes with the next answer that is acknowledged: a channel has a share of its own.
                Err(rejected) if rejected.error().is_backpressure() => {
                    client.waiting.push_front(rejected.into_given());
                    break;
                }
                // It is down, and its end comes as a message.
                Err(_down) => client.waiting.clear(),
            }
        }
        Ok(())
    }

    /// An answer has been taken by the client's device, or the channel has failed: its block returns
    /// to the pool.
    fn acknowledged(&mut self, completed: Completed) -> Result<(), Failure> {
        if let Some(client) = self.clients.get_mut(&completed.channel) {
            client.sending -= 1;
            client.since = Instant::now();
            if !client.waiting.is_empty() {
                return self.send_waiting(completed.channel);
            }
        }
        Ok(())
    }

    /// Accepts new clients. Each is connected by a thread of its own, so that a slow one does not
    /// delay the others.
    fn let_in(&mut self) -> Result<(), Failure> {
        while let Ok((stream, _from)) = self.listener.socket().accept() {
            let open = self.group.len() + usize::try_from(self.joining.1)?;
            if open < usize::try_from(self.options.max_clients)? {
                self.figures.came += 1;
                self.joining.1 += 1;
                self.connect(stream);
            } else {
                let full = io::Error::other("the server has as many clients as it may");
                PreparedChannel::refuse(&stream, TICK, &full);
            }
        }
        while let Ok(connected) = self.joined.try_recv() {
            self.joining.1 -= 1;
            match connected.and_then(|member| self.join(member)) {
                Ok(()) => {}
                Err(why) => self.figures.lost(&format!("did not get in: {why}"))?,
            }
        }
        if self.joining.1 == 0 {
            self.figures.connections(self.group.len())?;
        }
        Ok(())
    }

    fn connect(&self, stream: TcpStream) {
        let (factory, sender) = (self.factory.clone(), self.joining.0.clone());
        let limit = self.options.common.limit();
        thread::spawn(move || {
            let connect = || {
                let options = Connect::within(limit).private_data(&plan::welcome()?);
                let met = factory.prepare()?.exchange(&stream, options)?;
                plan::meet(&met.private_data).map(|()| met.channel)
            };
            // The receiver is closed only when the server ends.
            drop(sender.send(connect().context(|| "cannot connect")));
        });
    }

    fn join(&mut self, member: ConnectedMember) -> Result<(), Failure> {
        let start = Instant::now();
        let id = self.group.join(member)?;
        let client = Client {
            sending: 0,
            since: start,
            waiting: VecDeque::new(),
            has_left: false,
        };
        drop(self.clients.insert(id, client));
        self.figures.joined(start.elapsed(), self.group.len())
    }

    /// Removes clients whose devices acknowledge no answers.
    fn remove_stuck(&mut self) -> Result<(), Failure> {
        let limit = self.options.common.limit();
        let is_stuck = |client: &Client| client.sending > 0 && client.since.elapsed() >= limit;
        let stuck = self.clients.iter().filter(|(_, client)| is_stuck(client));
        for id in stuck.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.part(id, Some("it is stuck: it takes no answers"))?;
        }
        Ok(())
    }

    /// Removes a client that does not keep to the protocol.
    fn bad(&mut self, id: ChannelId, why: &str) -> Result<(), Failure> {
        self.figures.bad += 1;
        self.part(id, Some(why))
    }

    /// Removes a client, which was lost for this reason if there is one. Its blocks in flight return to
    /// the pool.
    fn part(&mut self, id: ChannelId, lost: Option<&str>) -> Result<(), Failure> {
        drop(self.clients.remove(&id));
        let start = Instant::now();
        self.group.remove(id)?;
        self.figures.leaves.push(start.elapsed());
        match lost {
            None => self.figures.left += 1,
            Some(why) => self.figures.lost(why)?,
        }
        Ok(())
    }
}
