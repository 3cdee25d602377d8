//! Events: from the card, through queues with descriptors, to `ibv_get_cq_event` and `ibv_get_async_event`.

mod asynchronous;
pub(crate) mod channel;
mod queue;

use std::collections::BTreeMap;
use std::sync::Arc;

use soft_nic::Event;

pub(crate) use queue::{Announced, EventQueue, Unacknowledged};

/// Where the events of an object go.
#[derive(Clone)]
pub(crate) struct Sink {
    /// Address of the object, as a program knows it.
    pub(crate) object: usize,
    pub(crate) queue: Arc<EventQueue>,
    pub(crate) unacknowledged: Arc<Unacknowledged>,
}

impl Sink {
    /// Forgets events of an object that has ended, and waits until those that a program has got are acknowledged.
    pub(crate) fn close(self) {
        let (object, queue) = (self.object, self.queue);
        drop(queue.split_off(|event| event.object == object));
        self.unacknowledged.wait();
    }
}

/// Where the events of a card's objects go. Objects are here from their creation to their end.
#[derive(Default)]
pub(crate) struct Events {
    /// Completion events of queues that have a channel.
    pub(crate) completions: BTreeMap<u32, Sink>,
    /// Asynchronous events, each by the card's number of the object.
    pub(crate) completion_queues: BTreeMap<u32, Sink>,
    pub(crate) queue_pairs: BTreeMap<u32, Sink>,
    pub(crate) shared_receives: BTreeMap<u32, Sink>,
    /// Contexts, which get the events of the port and the device.
    pub(crate) contexts: Vec<Arc<EventQueue>>,
}

/// A completion event has no number.
const NO_CODE: u32 = u32::MAX;
/// The only port, as the element of its events.
const PORT: usize = 1;

impl Events {
    /// Gives an event to those who can get it, with C's number (`ibv_event_type`).
    pub(crate) fn deliver(&mut self, event: Event) {
        let (sinks, number, code) = match event {
            Event::Completion(cq) => (&self.completions, cq.0, NO_CODE),
            Event::CompletionQueueOverrun(cq) => (&self.completion_queues, cq.0, 0),
            Event::QueuePairFatal(number) => (&self.queue_pairs, number, 1),
            Event::QueuePairRequestError(number) => (&self.queue_pairs, number, 2),
            Event::QueuePairAccessError(number) => (&self.queue_pairs, number, 3),
            Event::CommunicationEstablished(number) => (&self.queue_pairs, number, 4),
            Event::SendQueueDrained(number) => (&self.queue_pairs, number, 5),
            Event::LastWqeReached(number) => (&self.queue_pairs, number, 16),
            Event::SharedReceiveLimitReached(srq) => (&self.shared_receives, srq.0, 15),
            Event::DeviceFatal => return self.deliver_to_all(8),
            Event::PortActive => return self.deliver_to_all(9),
            Event::PortError => return self.deliver_to_all(10),
            Event::GidChange => return self.deliver_to_all(18),
        };
        // An event may be older than the end of its object.
        if let Some(sink) = sinks.get(&number) {
            let event = Announced {
                event: code,
                object: sink.object,
            };
            let unacknowledged = Arc::clone(&sink.unacknowledged);
            sink.queue.push(unacknowledged, event);
        }
    }

    /// Gives an event of the port or the device to each context.
    fn deliver_to_all(&self, event: u32) {
        for queue in &self.contexts {
            // Nothing ends with the port that would wait for its events.
            let object = PORT;
            queue.push(Arc::default(), Announced { event, object });
        }
    }
}
