//! A datagram borrows its address handle until it is posted.
use verbs_core::memory::Sge;
use verbs_core::path::{AddressHandle, QKey};
use verbs_core::work_request::DatagramWorkRequest;

fn request(ah: AddressHandle) {
    let mut list = [Sge::new(0, 8, 1)];
    let mut request = DatagramWorkRequest::new(&mut list, &ah, 7, QKey::MAX);
    drop(ah);
    request.set_wr_id(1);
}

fn main() {}
