//! Random patches and posts of chains, beside a model of what the driver must see.

use fake_libibverbs::faulty::{Random, programs};
use fake_libibverbs::{connected, with};
use verbs_core::{QueuePair, RemoteMemoryRegion, RequestChain, Sge, WriteWorkRequest};

const SIGNALED: u32 = 2;

/// The expected state of a request of a chain.
#[derive(Clone, Default)]
struct Model {
    wr_id: u64,
    list: Vec<(u64, u32, u32)>,
    remote_addr: u64,
    imm_data: Option<u32>,
}

fn patch(chain: &mut RequestChain<WriteWorkRequest<'_>>, model: &mut [Model], random: &mut Random) {
    let index = random.below(model.len());
    let request = &mut model[index];
    let len = u32::try_from(random.below(3)).unwrap();
    let sge = Sge::new(random.number(), len, 1);
    let addr = random.number() >> 1;
    let remote = RemoteMemoryRegion::new(addr, 8, 9).unwrap();
    match random.below(4) {
        0 => {
            request.wr_id = random.number();
            chain.set_wr_id(index, request.wr_id).unwrap();
        }
        1 => {
            request.imm_data = [None, Some(5)][random.below(2)];
            chain.set_immediate(index, request.imm_data).unwrap();
        }
        2 => {
            chain.set(index, sge, &remote).unwrap();
            request.list = vec![(sge.addr(), len, 1)];
            request.remote_addr = addr;
        }
        _ => {
            chain.set_list(index, [sge; 2], &remote).unwrap();
            request.list = vec![(sge.addr(), len, 1); 2];
            request.remote_addr = addr;
        }
    }
    request.list.retain(|(_, len, _)| *len != 0);
}

#[test]
fn random_patches_and_parts_are_posted_as_they_are() {
    programs(20, |seed| {
        let qp = connected();
        let mut random = Random(seed);
        let len = 1 + random.below(8);
        let every = random.below(4);
        let mut chain = RequestChain::writes(len, 2).unwrap().signal_every(every);
        let mut model = vec![Model::default(); len];
        for _ in 0..40 {
            patch(&mut chain, &mut model, &mut random);
            let start = random.below(len);
            let end = start + 1 + random.below(len - start);
            let taken = random.below(end - start);
            let fails = random.one_in(3);
            if fails {
                let refusal = (taken, -libc::ENOMEM, true);
                with(|library| library.refuse_post = Some(refusal));
            }
            check(
                &qp,
                &mut chain,
                &model,
                (start, end, every),
                fails.then_some(taken),
            );
        }
    });
}

fn check(
    qp: &QueuePair,
    chain: &mut RequestChain<WriteWorkRequest<'_>>,
    model: &[Model],
    (start, end, every): (usize, usize, usize),
    taken: Option<usize>,
) {
    // SAFETY: the library touches no buffer.
    let result = unsafe { qp.post_chain(chain, start..end) };
    assert_eq!(result.err().map(|error| error.posted()), taken);
    let posted = with(|library| library.posted.remove(0));
    assert_eq!(posted.len(), taken.unwrap_or(end - start));
    for (wr, index) in posted.iter().zip(start..) {
        let request = &model[index];
        assert_eq!((wr.wr_id, &wr.list), (request.wr_id, &request.list));
        assert_eq!(wr.remote_addr, request.remote_addr);
        let is_last = index + 1 == model.len() || index + 1 == end;
        let is_signaled = is_last || (every != 0 && (index + 1) % every == 0);
        assert_eq!(wr.send_flags == SIGNALED, is_signaled, "{index}");
        assert_eq!(wr.opcode, u32::from(request.imm_data.is_some()));
    }
}
