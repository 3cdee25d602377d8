//! Events: from the card, through queues with descriptors, to `ibv_get_cq_event` and `ibv_get_async_event`.

mod asynchronous;
pub(crate) mod channel;
mod queue;

use std::collections::BTreeMap;
use std::sync::Arc;

use soft_nic::Event;

pub(crate) use queue::{Announced, Event as Waiting, EventQueue, Unacknowledged};

/// Where the events of an object go.
#[derive(Clone, Debug)]
pub(crate) struct Sink {
    /// Address of the object, as a program knows it.
    pub(crate) object: usize,
    pub(crate) queue: Arc<EventQueue>,
    pub(crate) unacknowledged: Arc<Unacknowledged>,
}

impl Sink {
    /// Forgets events of an object that has ended.
    pub(crate) fn close(self) {
        let (object, queue) = (self.object, self.queue);
        drop(queue.split_off(|event| event.object == object && event.unacknowledged.is_some()));
    }
}

/// Where the events of a card's objects go. Objects are here from their creation to their end.
#[derive(Debug, Default)]
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

/// The only port, as the element of its events.
const PORT: usize = 1;

impl Events {
    /// Gives an event to those who can get it.
    pub(crate) fn deliver(&mut self, event: Event) {
        let (sinks, number) = match event {
            Event::Completion(cq) => (&self.completions, cq.0),
            Event::CompletionQueueOverrun(cq) => (&self.completion_queues, cq.0),
            Event::QueuePairFatal(number)
            | Event::QueuePairRequestError(number)
            | Event::QueuePairAccessError(number)
            | Event::CommunicationEstablished(number)
            | Event::SendQueueDrained(number)
            | Event::LastWqeReached(number) => (&self.queue_pairs, number),
            Event::SharedReceiveLimitReached(srq) => (&self.shared_receives, srq.0),
            Event::PortActive | Event::PortError | Event::GidChange | Event::DeviceFatal => {
                for queue in &self.contexts {
                    queue.push(Announced {
                        event: code(event),
                        object: PORT,
                        unacknowledged: None,
                    });
                }
                return;
            }
        };
        // An event may be older than the end of its object.
        if let Some(sink) = sinks.get(&number) {
            sink.queue.push(Announced {
                event: code(event),
                object: sink.object,
                unacknowledged: Some(Arc::clone(&sink.unacknowledged)),
            });
        }
    }
}

/// C's number (`ibv_event_type`); a completion event has none.
const fn code(event: Event) -> u32 {
    match event {
        Event::Completion(_) => u32::MAX,
        Event::CompletionQueueOverrun(_) => 0,
        Event::QueuePairFatal(_) => 1,
        Event::QueuePairRequestError(_) => 2,
        Event::QueuePairAccessError(_) => 3,
        Event::CommunicationEstablished(_) => 4,
        Event::SendQueueDrained(_) => 5,
        Event::DeviceFatal => 8,
        Event::PortActive => 9,
        Event::PortError => 10,
        Event::SharedReceiveLimitReached(_) => 15,
        Event::LastWqeReached(_) => 16,
        Event::GidChange => 18,
    }
}
