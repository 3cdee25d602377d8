//! A connection to a server, which any number of tasks use at the same time.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use programs::kv::record::{self, Seen};
use programs::kv::{HEADER, MAX_KEY, Reply, Request, Values, Welcome};
use programs::silence::{Moved, first};
use programs::{Common, Context as _, Failure};
use tokio::sync::{Mutex as AsyncMutex, Semaphore};
use tokio::time::{sleep, timeout};
use verbs_async::verbs_channel::verbs_core::RemoteMemoryRegion;
use verbs_async::verbs_channel::{BufferPool, Connect, OwnedBuffer};
use verbs_async::{AsyncChannel, AsyncGroup};

/// How many values are read at once: the number of buffers for them.
const READS: usize = 16;
/// How long there is no progress before the server is probed.
const SILENCE: Duration = Duration::from_secs(1);

/// A connection to a server.
#[derive(Debug)]
pub(crate) struct Connection {
    channel: AsyncChannel,
    values: Values,
    limit: Duration,
    /// One request at a time, with the buffers for it and its reply.
    requests: AsyncMutex<Option<(OwnedBuffer, OwnedBuffer)>>,
    slots: BufferPool,
    free: Semaphore,
    /// Where values were when the server was last queried.
    places: Mutex<HashMap<Vec<u8>, u32>>,
    moved: Moved,
    /// How often a value was read while it changed.
    torn: AtomicU64,
}

impl Connection {
    pub(crate) async fn new(
        group: &AsyncGroup,
        common: &Common,
        host: &str,
    ) -> Result<Self, Failure> {
        let (port, limit) = (common.port, common.limit());
        let meet = async {
            let options = Connect::within(limit).private_data(&Welcome::encode(None)?);
            Ok::<_, Failure>(group.connect((host, port), options).await?)
        };
        let met = meet.await.context(|| common.cannot_connect(host))?;
        let (channel, theirs) = (met.channel, met.private_data);
        let values = Welcome::decode(&theirs)?;
        let values = values.ok_or_else(|| Failure::new("the peer is no server"))?;
        let max_value = usize::try_from(values.max_value)?;
        let message = || {
            channel
                .pd()
                .reg_mr(vec![0_u8; HEADER + MAX_KEY + max_value])
        };
        let buffers = (message()?.into(), message()?.into());
        Ok(Self {
            slots: BufferPool::new(channel.pd(), record::slot_len(max_value), READS)?,
            free: Semaphore::new(READS),
            requests: AsyncMutex::new(Some(buffers)),
            channel,
            values,
            limit,
            places: Mutex::default(),
            moved: Moved::default(),
            torn: AtomicU64::new(0),
        })
    }

    /// Does `work` on the connection, and fails when there is no progress.
    pub(crate) async fn watched<T>(
        &self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let silence = async { Err(self.moved.silent(self.limit, sleep).await) };
        let death = async { Err(self.death().await) };
        let done = first(work, first(death, silence)).await;
        done.map_err(|why| match self.channel.down_reason() {
            // The first error: those of the other tasks followed from it.
            Some(reason) => {
                let reason = Failure::from(reason);
                Failure::new(format!("the connection is down: {reason}"))
            }
            None => why,
        })
    }

    /// Ends when the server is dead: probes it while there is no progress.
    ///
    /// A probe is a write of no bytes, which the server's device answers. Without it a server that
    /// died between a request and its reply would not be detected.
    async fn death(&self) -> Failure {
        loop {
            let before = self.moved.count();
            sleep(SILENCE).await;
            if self.moved.count() == before {
                let nowhere = match RemoteMemoryRegion::new(0, 0, 0) {
                    Ok(nowhere) => nowhere,
                    Err(error) => return error.into(),
                };
                if let Err(error) = self.channel.write(OwnedBuffer::empty(), nowhere).await.0 {
                    let why: Failure = error.into();
                    return Failure::new(format!("the server is gone: {why}"));
                }
            }
        }
    }

    /// Sends a request, and waits for the reply: its receive is posted first.
    async fn ask(&self, request: &Request<'_>) -> Result<Reply, Failure> {
        let mut buffers = self.requests.lock().await;
        // A task that is cancelled in here does not put them back: its reply may still arrive.
        let taken = buffers.take();
        let (mut outbox, inbox) =
            taken.ok_or_else(|| Failure::new("an earlier request was given up"))?;
        outbox.set_range(..)?;
        let len = request.encode(&mut outbox);
        let len = match len {
            Ok(len) => len,
            Err(why) => {
                *buffers = Some((outbox, inbox));
                return Err(why);
            }
        };
        outbox.set_range(..len)?;
        let receive = self.channel.receive(inbox);
        let (sent, outbox) = self.channel.send(outbox).await;
        let _success = sent.context(|| "asking the server")?;
        let (received, inbox) = receive.await;
        let len = usize::try_from(received.context(|| "asking the server")?.byte_len())?;
        let reply = Reply::decode(inbox.get(..len).unwrap_or_default());
        *buffers = Some((outbox, inbox));
        self.moved.one();
        match reply? {
            Reply::Refused(why) => Err(Failure::new(format!("the server refuses: {why}"))),
            reply => Ok(reply),
        }
    }

    pub(crate) async fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Failure> {
        match self.ask(&Request::Put { key, value }).await? {
            Reply::Done => Ok(()),
            _ => Err(out_of_order()),
        }
    }

    /// Whether there was something to delete.
    pub(crate) async fn delete(&self, key: &[u8]) -> Result<bool, Failure> {
        match self.ask(&Request::Delete { key }).await? {
            Reply::Done => Ok(true),
            Reply::NotFound => Ok(false),
            _ => Err(out_of_order()),
        }
    }

    /// The value, read from the server's memory. The server is only asked where it is, and only if it
    /// has moved.
    pub(crate) async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Failure> {
        let start = Instant::now();
        loop {
            let known = self.places().get(key).copied();
            let place = match known {
                Some(place) => place,
                None => match self.ask(&Request::Get { key }).await? {
                    Reply::At(place) => place,
                    Reply::NotFound => return Ok(None),
                    _ => return Err(out_of_order()),
                },
            };
            // It outlives the buffer that it is for.
            let _permit = self.free.acquire().await?;
            let slot = self.read(place).await?;
            match record::look(&slot, key) {
                Seen::Value(value) => {
                    if known.is_none() {
                        let _none = self.places().insert(key.to_vec(), place);
                    }
                    return Ok(Some(value.to_vec()));
                }
                Seen::Torn => {
                    let _before = self.torn.fetch_add(1, Ordering::Relaxed);
                }
                Seen::Other => {
                    let _place = self.places().remove(key);
                }
            }
            if start.elapsed() >= self.limit {
                let limit = self.limit.as_secs();
                return Err(Failure::new(format!(
                    "the value has not stood still for {limit} s"
                )));
            }
        }
    }

    /// Reads a slot with one RDMA read, at the same time as others.
    async fn read(&self, place: u32) -> Result<OwnedBuffer, Failure> {
        let slot = self.slots.take();
        let slot = slot.ok_or_else(|| Failure::new("no buffer is left"))?;
        let len = slot.len() as u64;
        let start = u64::from(place) * len;
        let there = self.values.region.slice(start..start + len)?;
        let (read, slot) = self.channel.read(slot, there).await;
        let _success = read.context(|| "reading the server's memory")?;
        self.moved.one();
        Ok(slot)
    }

    /// How often a value was read while it changed.
    pub(crate) fn torn(&self) -> u64 {
        self.torn.load(Ordering::Relaxed)
    }

    /// Leaves the server.
    pub(crate) async fn bye(self) -> Result<(), Failure> {
        let mut buffers = self.requests.into_inner();
        let Some((mut outbox, _)) = buffers.take() else {
            return Ok(());
        };
        outbox.set_range(..)?;
        let len = Request::Bye.encode(&mut outbox)?;
        outbox.set_range(..len)?;
        let sent = timeout(self.limit, self.channel.send(outbox)).await;
        let (sent, _outbox) = sent.context(|| "leaving the server")?;
        Ok(sent.map(drop)?)
    }

    fn places(&self) -> MutexGuard<'_, HashMap<Vec<u8>, u32>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn out_of_order() -> Failure {
    Failure::new("the server's reply does not answer the request")
}
