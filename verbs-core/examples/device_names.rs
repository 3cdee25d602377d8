//! Prints the names of the devices, or why there are none.
//!
//! With the feature `dlopen` it runs on machines without libibverbs, too.
#![expect(clippy::print_stdout, reason = "a program")]

use verbs_core::{Device, Error};

fn main() {
    let devices = match Device::list() {
        Ok(devices) => devices,
        Err(Error::NoLibrary) => return println!("no RDMA here: {}", Error::NoLibrary),
        Err(error) => return println!("{error}"),
    };
    println!("{} devices", devices.len());
    for device in devices {
        match device.index() {
            Some(index) => println!("{index}: {}", device.name()),
            // The library is too old for it.
            None => println!("{}", device.name()),
        }
    }
}
