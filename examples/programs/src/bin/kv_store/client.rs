//! The client: requests by messages, values by reading the server's memory.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use programs::kv::record::{self, Seen};
use programs::kv::{HEADER, MAX_KEY, Reply, Request, Values, Welcome};
use programs::{Common, Context as _, Failure};
use verbs_channel::verbs_core::{
    Context, GatherElement, MemoryRegion, RemoteMemoryRegion, WorkSuccess,
};
use verbs_channel::{Channel, Connect, PollStrategy, PollingScope, ScopeError, ScopedPendingWork};

/// How long to wait for a reply before the server is probed.
const SILENCE: Duration = Duration::from_secs(1);

/// A connection to a server.
#[derive(Debug)]
pub(crate) struct Connection {
    channel: Channel,
    outbox: MemoryRegion<Vec<u8>>,
    inbox: MemoryRegion<Vec<u8>>,
    slot: MemoryRegion<Vec<u8>>,
    values: Values,
    limit: Duration,
    /// Where values were when the server was last queried.
    places: HashMap<Vec<u8>, u32>,
    /// How often a value was read while it changed.
    pub(crate) torn: u64,
}

impl Connection {
    pub(crate) fn new(common: &Common, context: &Context, host: &str) -> Result<Self, Failure> {
        let pd = context.alloc_pd()?;
        let prepared = Channel::builder(&pd)
            .port_num(common.ib_port)
            .gid_index(common.gid_idx)
            .timeout(common.limit())
            .strategy(PollStrategy::Notify { after: 100 })
            .build()?;
        let server = (host, common.port);
        let welcome = Welcome::encode(None)?;
        let connected = prepared.connect(
            server,
            Connect::within(common.limit()).private_data(&welcome),
        );
        let met = connected.context(|| common.cannot_connect(host))?;
        let values = Welcome::decode(&met.private_data)?;
        let values = values.ok_or_else(|| Failure::new("the peer is no server"))?;
        let max_value = usize::try_from(values.max_value)?;
        let message = HEADER + MAX_KEY + max_value;
        Ok(Self {
            outbox: pd.reg_mr(vec![0_u8; message])?,
            inbox: pd.reg_mr(vec![0_u8; message])?,
            slot: pd.reg_mr(vec![0_u8; record::slot_len(max_value)])?,
            channel: met.channel,
            values,
            limit: common.limit(),
            places: HashMap::new(),
            torn: 0,
        })
    }

    /// Sends a request, and waits for the reply: its receive is posted first.
    pub(crate) fn ask(&mut self, request: &Request<'_>) -> Result<Reply, Failure> {
        let len = request.encode(&mut self.outbox)?;
        let Self {
            channel,
            outbox,
            inbox,
            limit,
            ..
        } = self;
        let received = channel
            .scope(|scope| {
                let receive = scope.post_receive(inbox.scatter_element(..)?)?;
                scope
                    .post_send(outbox.gather_element(..len)?)?
                    .spin_poll()?;
                reply_to(scope, receive, *limit)
            })
            .map_err(ScopeError::<Failure>::flatten);
        let len = usize::try_from(received.context(|| "asking the server")?.byte_len())?;
        match Reply::decode(self.inbox.get(..len).unwrap_or_default())? {
            Reply::Refused(why) => Err(Failure::new(format!("the server refuses: {why}"))),
            reply => Ok(reply),
        }
    }

    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Failure> {
        match self.ask(&Request::Put { key, value })? {
            Reply::Done => Ok(()),
            _ => Err(out_of_order()),
        }
    }

    /// Whether there was something to delete.
    pub(crate) fn delete(&mut self, key: &[u8]) -> Result<bool, Failure> {
        match self.ask(&Request::Delete { key })? {
            Reply::Done => Ok(true),
            Reply::NotFound => Ok(false),
            _ => Err(out_of_order()),
        }
    }

    /// All keys, in order.
    pub(crate) fn list(&mut self) -> Result<Vec<Vec<u8>>, Failure> {
        let mut all: Vec<Vec<u8>> = Vec::new();
        loop {
            let after = all.last().map_or(&[][..], |key| key);
            let Reply::Keys { keys, more } = self.ask(&Request::List { after })? else {
                return Err(out_of_order());
            };
            // Each reply must contain a later key, or this would never end.
            let leads_on = keys.first().is_none_or(|first| all.last() < Some(first));
            if !leads_on || (more && keys.is_empty()) {
                return Err(out_of_order());
            }
            all.extend(keys);
            if !more {
                return Ok(all);
            }
        }
    }

    /// The value, read from the server's memory. The server is only asked where it is, and only if it
    /// has moved.
    pub(crate) fn get(&mut self, key: &[u8]) -> Result<Option<&[u8]>, Failure> {
        let start = Instant::now();
        loop {
            let place = match self.places.get(key) {
                Some(place) => *place,
                None => match self.ask(&Request::Get { key })? {
                    Reply::At(place) => place,
                    Reply::NotFound => return Ok(None),
                    _ => return Err(out_of_order()),
                },
            };
            self.read(place)?;
            match record::look(&self.slot, key) {
                Seen::Value(_) => {
                    self.places.entry(key.to_vec()).or_insert(place);
                    break;
                }
                Seen::Torn => self.torn += 1,
                Seen::Other => drop(self.places.remove(key)),
            }
            if start.elapsed() >= self.limit {
                let limit = self.limit.as_secs();
                return Err(Failure::new(format!(
                    "the value has not stood still for {limit} s"
                )));
            }
        }
        match record::look(&self.slot, key) {
            Seen::Value(value) => Ok(Some(value)),
            Seen::Torn | Seen::Other => Err(out_of_order()),
        }
    }

    /// Reads a slot with one RDMA read.
    fn read(&mut self, place: u32) -> Result<(), Failure> {
        let len = self.slot.len() as u64;
        let start = u64::from(place) * len;
        let there = self.values.region.slice(start..start + len)?;
        let read = self.channel.read(self.slot.scatter_element(..)?, there);
        read.context(|| "reading the server's memory")
    }

    /// Leaves the server.
    pub(crate) fn bye(mut self) -> Result<(), Failure> {
        let len = Request::Bye.encode(&mut self.outbox)?;
        Ok(self.channel.send(self.outbox.gather_element(..len)?)?)
    }
}

/// Waits for a reply, and probes the server while none comes.
///
/// A probe is a write of no bytes, which the server's device answers. Without it a server that died
/// between a request and its reply would not be detected before the limit.
fn reply_to<'scope>(
    scope: &'scope PollingScope<'scope, '_>,
    mut reply: ScopedPendingWork<'_, '_>,
    limit: Duration,
) -> Result<WorkSuccess, Failure> {
    let start = Instant::now();
    loop {
        if let Some(received) = reply.wait_timeout(SILENCE) {
            return Ok(received?);
        }
        if start.elapsed() >= limit {
            let limit = limit.as_secs();
            return Err(Failure::new(format!(
                "the server is stuck: no reply for {limit} s (--timeout waits longer)"
            )));
        }
        let nothing: [GatherElement<'_>; 0] = [];
        let probe = scope.post_write(nothing, RemoteMemoryRegion::new(0, 0, 0)?)?;
        let _success = probe.spin_poll().context(|| "the server is gone")?;
    }
}

fn out_of_order() -> Failure {
    Failure::new("the server's reply does not answer the request")
}
