//! A ticket's result is taken from the channel.

use verbs_channel::Ticket;

fn broken(ticket: Ticket) {
    drop(ticket.wait(None));
}

fn main() {}
