//! Only the engine builds the requests of a list, whose elements it has put side by side.

use verbs_channel::request::Request;

fn broken<W: Request>(mut request: W) {
    let (list, options) = request.parts();
    drop(W::request(list, options, 7, true, |_| ()));
}

fn main() {}
