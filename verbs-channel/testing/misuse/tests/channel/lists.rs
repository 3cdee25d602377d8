//! Safe requests take elements that borrow their memory, or buffers that are owned.

use verbs_channel::request::{List, Request};
use verbs_channel::verbs_core::memory::Sge;
use verbs_channel::verbs_core::{GatherElement, MemoryRegion, SharedRegion};
use verbs_channel::{Channel, Outgoing};

/// A gather element is not received into.
fn gather_element_to_receive_into(channel: &mut Channel, region: MemoryRegion<Vec<u8>>) {
    drop(channel.receive(region.gather_element(..).unwrap()));
}

/// A raw element borrows no memory, so a safe request does not accept it.
fn raw_sge_in_a_list(channel: &mut Channel) {
    drop(channel.send(Sge::new(0x1000, 64, 7)));
}

/// A region is sent as an element: the compiler says which call makes one.
fn region_is_not_a_list_of_elements(channel: &mut Channel, region: &MemoryRegion<Vec<u8>>) {
    let _sent = channel.send(region);
}

/// The elements of a list cannot become ones of other memory.
fn list_of_other_memory<L: List<Element = Sge>>(list: &mut L, other: Sge) {
    list.elements()[0] = other;
}

/// Only the engine builds the requests of a list, whose elements it has put side by side.
fn request_of_a_list_as_it_is<W: Request>(mut request: W) {
    let (list, options) = request.parts();
    drop(W::request(list, options, 7, true, |_| ()));
}

/// Only owned buffers are started: a borrow could end while the device uses it.
fn borrowed_element_is_not_owned_work(channel: &mut Channel, element: GatherElement<'_>) {
    let _ticket = channel.start(Outgoing::send(element));
}

/// A shared region is not owned by a channel, which would return it as bytes.
fn shared_region_is_not_owned_work(channel: &mut Channel, region: SharedRegion<Vec<u8>>) {
    let _ticket = channel.start_receive(region);
}

/// A buffer that was moved into the channel is not used.
fn owned_buffer_used_after_it_was_given(channel: &mut Channel, region: MemoryRegion<Vec<u8>>) {
    let _ticket = channel.start_receive(region).unwrap();
    println!("{}", region[0]);
}

fn main() {}
