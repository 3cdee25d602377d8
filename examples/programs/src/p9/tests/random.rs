//! Requests and bytes at random.

use std::fs;
use std::os::unix::fs::symlink;

use proptest::prelude::*;

use super::{Files, name};
use crate::p9::{Data, HEADER, Name, Names, Request, Text};

/// A name of few, so that requests meet.
fn any_name() -> impl Strategy<Value = Name<'static>> {
    prop::sample::select(vec!["a", "b", "dir", "file", "inner", "up"]).prop_map(name)
}

fn any_request() -> impl Strategy<Value = Request<'static>> {
    let (fid, number) = (0..6_u32, any::<u32>());
    let numbers = (
        fid.clone(),
        fid.clone(),
        number,
        any::<u64>(),
        0..0o7777_u32,
    );
    let names = prop::collection::vec(any_name(), 0..4);
    (numbers, any_name(), any_name(), names, 0..18).prop_map(
        |((fid, dfid, any, long, mode), name, new_name, names, which)| match which {
            0 => Request::Statfs { fid },
            1 => Request::Lopen {
                fid,
                flags: any & 0o1003,
            },
            2 => Request::Lcreate {
                fid,
                name,
                flags: any & 0o3203,
                mode,
                gid: any,
            },
            3 => Request::Symlink {
                dfid,
                name,
                target: Text(b"../outside"),
                gid: any,
            },
            4 => Request::Mknod {
                dfid,
                name,
                mode: any,
                major: any,
                minor: any,
                gid: any,
            },
            5 => Request::Readlink { fid },
            6 => Request::Getattr { fid, mask: long },
            7 => Request::Setattr {
                fid,
                valid: any & !0x6,
                mode,
                uid: any,
                gid: any,
                size: long & 0xf_ffff,
                atime_sec: long,
                atime_nsec: long,
                mtime_sec: long,
                mtime_nsec: long,
            },
            8 => Request::Readdir {
                fid,
                offset: long,
                count: any,
            },
            9 => Request::Link { dfid, fid, name },
            10 => Request::Mkdir {
                dfid,
                name,
                mode,
                gid: any,
            },
            11 => Request::Renameat {
                old_dfid: dfid,
                old_name: name,
                new_dfid: fid,
                new_name,
            },
            12 => Request::Unlinkat {
                dfid,
                name,
                flags: any & 0x200,
            },
            13 | 14 => Request::Walk {
                fid,
                new_fid: dfid,
                names: Names::new(&names).unwrap(),
            },
            15 => Request::Read {
                fid,
                offset: long,
                count: any,
            },
            16 => Request::Write {
                fid,
                offset: long & 0xffff,
                data: Data(b"contents"),
            },
            _ => Request::Clunk { fid: dfid.max(1) },
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_request_is_decoded_as_it_was_encoded(request in any_request(), tag: u16) {
        let mut bytes = [0; 4096];
        let len = request.encode(tag, &mut bytes).unwrap();
        prop_assert_eq!(Request::decode(bytes[4], &bytes[HEADER..len]), Ok(request));
        // Not with a byte less or more.
        prop_assert!(Request::decode(bytes[4], &bytes[HEADER..len - 1]).is_err());
        prop_assert!(Request::decode(bytes[4], &bytes[HEADER..=len]).is_err());
        prop_assert!(request.encode(tag, &mut bytes[..len - 1]).is_err());
    }

    #[test]
    fn bytes_that_are_a_request_are_encoded_as_they_were(
        number in (4..62_u8).prop_map(|half| half * 2),
        bytes in prop::collection::vec(prop_oneof![Just(0), Just(1), 0..=255_u8], 0..80),
    ) {
        if let Ok(request) = Request::decode(number, &bytes) {
            let mut again = [0; 4096];
            let len = request.encode(1, &mut again).unwrap();
            prop_assert_eq!(&again[HEADER..len], &bytes[..]);
        }
    }

    #[test]
    fn whatever_is_asked_is_answered_and_stays_inside(
        requests in prop::collection::vec(any_request(), 1..60),
        noise in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        let files = Files::new();
        symlink("../outside", files.root().join("up")).unwrap();
        let mut client = files.client();
        for request in &requests {
            let _answer = client.ask(request);
            // The same, with bytes that fit nothing.
            let [message, answer] = &mut client.buffers;
            let len = request.encode(1, message).unwrap();
            for (to, from) in message[HEADER..len].iter_mut().zip(&noise) {
                *to ^= from & 0x11;
            }
            if request.number() != 26 {
                let len = client.session.answer(&message[..len], answer).unwrap();
                prop_assert!((HEADER..=16_384).contains(&len));
            }
        }
        prop_assert!(client.session.fids() <= 64);
        prop_assert_eq!(fs::read(files.secret()).unwrap(), b"secret");
        prop_assert_eq!(fs::read_dir(files.0.join("outside")).unwrap().count(), 1);
        prop_assert_eq!(fs::read_dir(&files.0).unwrap().count(), 2);
    }
}
