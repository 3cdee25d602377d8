//! A ticket alone has no result: the channel has it.

use verbs_channel::Ticket;

fn broken(ticket: Ticket) {
    drop(ticket.wait(None));
}

fn main() {}
