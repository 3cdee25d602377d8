//! A buffer that is created in a scope is not posted in it: it would be dropped first.

use verbs_channel::Channel;
use verbs_channel::verbs_core::ProtectionDomain;

fn broken(channel: &mut Channel, pd: &ProtectionDomain) {
    let ended = channel.scope(|scope| {
        let mut region = pd.reg_mr(vec![0_u8; 64]).unwrap();
        let _work = scope.post_receive(region.scatter_element(..).unwrap());
        Ok::<_, ()>(())
    });
    ended.unwrap();
}

fn main() {}
