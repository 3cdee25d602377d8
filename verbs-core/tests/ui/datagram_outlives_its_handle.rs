//! A datagram borrows its address handle until it is posted.
use verbs_core::{AddressHandle, DatagramWorkRequest, QKey, Sge};

fn request(ah: AddressHandle) {
    let mut list = [Sge::new(0, 8, 1)];
    let mut request = DatagramWorkRequest::new(&mut list, &ah, 7, QKey::MAX);
    drop(ah);
    request.set_wr_id(1);
}

fn main() {}
